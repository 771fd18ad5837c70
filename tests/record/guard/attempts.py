"""What scripts do that a sketch must not: each in a few lines, given a folder ``here`` with something to lose."""

from __future__ import annotations

from importlib.util import find_spec
from textwrap import indent

FILES = {
    "write": "open(here / 'new.txt', 'w').write('x')",
    "overwrite": "open(here / 'keep.txt', 'w').write('x')",
    "append": "open(here / 'keep.txt', 'a').write('x')",
    "change_in_place": "with open(here / 'data.bin', 'r+b') as f: f.write(b'x')",
    "make_anew": "open(here / 'new.txt', 'x').close()",
    "os_open": "os.write(os.open(here / 'new.txt', os.O_WRONLY | os.O_CREAT), b'x')",
    "os_open_truncating": "os.close(os.open(here / 'keep.txt', os.O_WRONLY | os.O_TRUNC))",
    "raw": "io.FileIO(str(here / 'new.txt'), 'w').write(b'x')",
    "opener": "open(here / 'new.txt', 'w', opener=lambda path, flags: os.open(path, flags)).write('x')",
    "pathlib": "(here / 'keep.txt').write_text('x')",
    "touch": "(here / 'new.txt').touch()",
    "through_a_link": "open(here / 'link', 'w').write('x')",
    "in_a_folder_of_its_own": "os.makedirs(here / 'a' / 'b')\nopen(here / 'a' / 'b' / 'c', 'w').write('x')",
    "remove": "os.remove(here / 'keep.txt')",
    "unlink": "(here / 'keep.txt').unlink()",
    "rmtree": "shutil.rmtree(here / 'full')",
    "rmdir": "os.rmdir(here / 'empty')",
    "rename": "os.rename(here / 'keep.txt', here / 'new.txt')",
    "rename_a_folder": "(here / 'full').rename(here / 'moved')",
    "replace": "open(here / 'new', 'w').close()\nos.replace(here / 'new', here / 'keep.txt')",
    "chmod": "os.chmod(here / 'keep.txt', 0o777)",
    "utime": "os.utime(here / 'keep.txt', (1, 1))",
    "truncate": "os.truncate(here / 'keep.txt', 0)",
    "symlink": "os.symlink('/etc/hosts', here / 'new')",
    "hard_link": "os.link(here / 'keep.txt', here / 'new')",
    "copy": "shutil.copy(here / 'keep.txt', here / 'new')",
    "copytree": "shutil.copytree(here / 'full', here / 'new')",
    "move": "shutil.move(here / 'keep.txt', here / 'new')",
    "fifo": "os.mkfifo(here / 'new')",
    "json": "json.dump({}, open(here / 'new', 'w'))",
    "csv": "csv.writer(open(here / 'new', 'w')).writerow([1])",
    "pickle": "pickle.dump(1, open(here / 'new', 'wb'))",
    "gzip": "gzip.open(here / 'new.gz', 'wb').write(b'x')",
    "zipfile": "zipfile.ZipFile(here / 'new.zip', 'w').writestr('a', 'b')",
    "tarfile": "tarfile.open(here / 'new.tar', 'w').add(here / 'keep.txt')",
    "numpy_save": "np.save(here / 'new.npy', np.ones(3))",
    "numpy_savez": "np.savez(here / 'new.npz', np.ones(3))",
    "numpy_savetxt": "np.savetxt(here / 'new.txt', np.ones(3))",
    "tofile": "np.ones(3).tofile(here / 'new.bin')",
    "memmap": "np.memmap(here / 'data.bin', np.uint8, 'r+')[:] = 7",
    "mmap": "with open(here / 'data.bin', 'r+b') as f: mmap.mmap(f.fileno(), 0)[:1] = b'x'",
    "sqlite": "with sqlite3.connect(here / 'new.db') as db: db.execute('create table a (b)')",
    "sqlite_attach": "sqlite3.connect(':memory:').execute('ATTACH DATABASE ? AS b', (str(here / 'new.db'),))",
    "sqlite_script": "db = sqlite3.connect(':memory:').cursor()\n"
    "db.executescript(f\"attach '{here}/new.db' as b; create table b.a (c); insert into b.a values (7)\")\n"
    "assert db.execute('select c from b.a').fetchall() == [(7,)]",
    "sqlite_vacuum": "sqlite3.connect(':memory:').execute(f\"VACUUM INTO '{here}/new.db'\")",
    "shelve": "shelve.open(str(here / 'new'))['a'] = 1",
    "posix": "import posix; posix.unlink(str(here / 'keep.txt'))",
    "bz2": "bz2.open(here / 'new.bz2', 'wb').write(b'x')",
    "code_that_was_written": "(here / 'm.py').write_text('a = 1'); py_compile.compile(here / 'm.py')",
    "c_open": "assert ctypes.CDLL(None).open(bytes(here / 'new'), 0o101, 0o644) == -1",
    "c_chmod": "ctypes.CDLL(None).chmod(bytes(here / 'keep.txt'), 0o777)",
    "c_system_call": "assert ctypes.CDLL(None).syscall(90, bytes(here / 'keep.txt'), 0o777) == -1",
    "c_unlink": "ctypes.CDLL(None)['unlink'](bytes(here / 'keep.txt'))",
    "a_signal": "signal.signal(signal.SIGALRM, lambda *_: (here / 'new').touch())\n"
    "signal.setitimer(signal.ITIMER_REAL, 0.01); time.sleep(0.1)",
    "a_finalizer": "weakref.finalize(threading.Event(), (here / 'new').touch)",
    "another_interpreter": "i = interpreters.create()\n"
    "interpreters.run_string(i, f\"import os; os.chmod('{here}/keep.txt', 0o777)\"); interpreters.destroy(i)",
    "raw_by_a_class_of_its_own": "class Raw(io.FileIO): pass\nRaw(str(here / 'keep.txt'), 'w').write(b'x')",
    "python_io": "import _pyio; file = _pyio.open(str(here / 'keep.txt'), 'w'); file.write('x'); file.close()",
    "temporary_folder_of_its_own": "before, tempfile.tempdir = tempfile.tempdir, str(here)\n"
    "tempfile.NamedTemporaryFile(delete=False).write(b'x'); tempfile.tempdir = before",
    "flags": "with open(here / 'keep.txt') as file: fcntl.ioctl(file, 0x40086602, bytes(8))",
    "truncate_the_output": "os.ftruncate(1, 0)",
    "sqlite_connection": "sqlite3.Connection(str(here / 'new.db')).execute('create table a (b)')",
    "sqlite_class": "class Mine(sqlite3.Connection): pass\nMine(str(here / 'new.db')).execute('create table a (b)')",
    "c_times": "ctypes.CDLL(None).futimesat(-100, bytes(here / 'keep.txt'), None)",
    "c_shared_memory": "assert ctypes.CDLL(None).shmctl(1 << 30, 0, None) == -1",
    "at_exit": "atexit.register((here / 'new').touch)",
    "a_thread": "t = threading.Thread(target=(here / 'new').write_text, args=('x',)); t.start(); t.join()",
}
SAVERS = {
    "torch_save": "torch.save(model.state_dict(), here / 'keep.txt')",
    "torch_save_to_a_file": "with open(here / 'keep.txt', 'wb') as f: torch.save(model, f)",
    "jit_save": "torch.jit.save(torch.jit.ScriptModule(), str(here / 'new.pt'))",
    "traced": "torch.jit.trace(model, torch.ones(4, 8)).save(str(here / 'new.pt'))",
    "archive": "torch._C.PyTorchFileWriter(str(here / 'keep.txt'))",
    "distributed_checkpoint": "dcp.save(model.state_dict(), checkpoint_id=str(here / 'new'))",
    "file_handler": "log = logging.getLogger(str(here)); log.addHandler(logging.FileHandler(here / 'new.log'))\n"
    "log.warning('x')",
    "rotating_handler": "log = logging.getLogger(str(here))\n"
    "log.addHandler(logging.handlers.RotatingFileHandler(here / 'new.log'))\nlog.warning('x')",
    "exported": "program = torch.export.export(model, (torch.ones(4, 8),)); torch.export.save(program, here / 'new')",
    "execution_trace": "torch.profiler.ExecutionTraceObserver().register_callback(str(here / 'new'))",
    "memory_snapshot": "torch.cuda.memory._record_memory_history()\n"
    "torch.cuda.memory._dump_snapshot(str(here / 'new'))",
    "file_store": "torch.distributed.FileStore(str(here / 'new'), 1).set('a', 'b')",
    "file_of_a_rendezvous": "next(rendezvous('file://' + str(here / 'new'), rank=0, world_size=1))",
    "mapped": "torch.from_file(str(here / 'data.bin'), True, 4, dtype=torch.uint8).fill_(7)",
    "summary_writer": "writer = Writer(here / 'runs'); writer.add_scalar('loss', 1); writer.close()",
}
NETWORK = {
    "connect": "socket.socket().connect(('127.0.0.1', PORT))",
    "send": "with socket.create_connection(('127.0.0.1', PORT)) as s: s.sendall(b'x'); assert s.recv(1) == b''",
    "raw_socket": "s = _socket.socket(); s.connect(('127.0.0.1', PORT)); s.send(b'x'); assert s.recv(1) == b''",
    "raw_datagram": "_socket.socket(_socket.AF_INET, _socket.SOCK_DGRAM).sendto(b'x', ('127.0.0.1', PORT))",
    "raw_listen": "s = _socket.socket(); s.bind(('127.0.0.1', 0)); s.listen()",
    "asyncio": "asyncio.run(asyncio.open_connection('127.0.0.1', PORT))",
    "datagram": "socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('127.0.0.1', PORT))",
    "listen": "s = socket.socket(); s.bind(('127.0.0.1', 0)); s.listen()",
    "unix_socket": "socket.socket(socket.AF_UNIX).bind(str(here / 'new'))",
    "urlopen": "assert urllib.request.urlopen(f'http://127.0.0.1:{PORT}/').read() == b''",
    "urlretrieve": "urllib.request.urlretrieve(f'http://127.0.0.1:{PORT}/', here / 'new')",
    "http": "c = http.client.HTTPConnection('127.0.0.1', PORT); c.request('POST', '/', b'x'); c.getresponse().read()",
    "log_by_http": "handler = logging.handlers.HTTPHandler(f'127.0.0.1:{PORT}', '/', 'POST')\n"
    "handler.emit(logging.makeLogRecord({}))",
    "system_log_by_datagram": "logging.handlers.SysLogHandler(('127.0.0.1', PORT)).emit(logging.makeLogRecord({}))",
    "server": "http.server.HTTPServer(('127.0.0.1', 0), http.server.BaseHTTPRequestHandler).serve_forever()",
    "mail": "with smtplib.SMTP('127.0.0.1', PORT) as server: server.sendmail('a@b', 'c@d', 'x')",
    "store": "torch.distributed.TCPStore('127.0.0.1', PORT, 2, False)",
    "c_connect": "ctypes.CDLL(None).connect(3, b'', 0)",
    "tls": "s = ssl.create_default_context().wrap_socket(socket.socket(), server_hostname='a')\n"
    "s.connect(('127.0.0.1', PORT)); s.sendall(b'x'); assert s.recv(1) == b''",
    "tls_later": "with socket.create_connection(('127.0.0.1', PORT)) as s:\n"
    "    ssl.create_default_context().wrap_socket(s, server_hostname='a').sendall(b'x')",
    "asyncio_tls": "asyncio.run(asyncio.open_connection('127.0.0.1', PORT, ssl=True))",
    "server_that_ends": "s = socketserver.ThreadingTCPServer(('127.0.0.1', 0), socketserver.BaseRequestHandler)\n"
    "threading.Thread(target=s.serve_forever).start(); s.shutdown(); s.server_close()",
    "message": "multiprocessing.connection.Client(('127.0.0.1', PORT)).send(1)",
    "listener": "multiprocessing.connection.Listener(str(here / 'new')).close()",
    "host_name": "socket.sethostname(socket.gethostname())",
    "log_to_a_server": "logging.handlers.SocketHandler('127.0.0.1', PORT).emit(logging.makeLogRecord({}))",
}
PROCESSES = {
    "run": "assert subprocess.run(['touch', here / 'new'], capture_output=True, text=True).stdout == ''",
    "popen": "p = subprocess.Popen(f'touch {here}/new', shell=True); assert p.wait() == 0 and p.poll() == 0",
    "check_output": "assert subprocess.check_output(['touch', here / 'new']) == b''",
    "asyncio_program": "assert asyncio.run(asyncio.create_subprocess_exec('touch', str(here / 'new'))).returncode == 0",
    "asyncio_shell": "async def run():\n    p = await asyncio.create_subprocess_shell(f'touch {here}/new', stdout=-1)\n"
    "    assert await p.communicate() == (b'', None) and await p.wait() == 0\nasyncio.run(run())",
    "system": "assert os.system(f'touch {here}/new') == 0",
    "os_popen": "os.popen(f'touch {here}/new').read()",
    "c_system": "ctypes.CDLL(None).system(f'touch {here}/new'.encode())",
    "c_fork": "assert ctypes.CDLL(None).fork() == -1",
    "system_log": "syslog.syslog('x')",
    "fork": "pid = os.fork()\nif not pid: open(here / 'new', 'w'); os._exit(0)\nos.waitpid(pid, 0)",
    "fork_terminal": "pid, fd = pty.fork()\nif not pid: open(here / 'new', 'w'); os._exit(0)\n"
    "assert os.write(fd, b'x') == 1 and os.read(fd, 9) == b''; os.waitpid(pid, 0); os.close(fd)",
    "os_fork_terminal": "os.close(os.forkpty()[1])",
    "spawn_terminal": "pty.spawn(['touch', str(here / 'new')])",
    "spawn": "os.spawnlp(os.P_WAIT, 'touch', 'touch', str(here / 'new'))",
    "posix_spawn": "os.posix_spawnp('touch', ['touch', str(here / 'new')], os.environ)",
    "exec": "os.execlp('touch', 'touch', str(here / 'new'))",
    "process": "p = multiprocessing.Process(target=(here / 'new').touch); p.start(); p.join(); assert p.exitcode == 0",
    "spawned_process": "p = multiprocessing.get_context('spawn').Process(target=print); p.start(); p.join()",
    "pool": "with multiprocessing.Pool(2) as pool: assert pool.map(abs, [-1]) == [1]",
    "executor": "with ProcessPoolExecutor() as pool: assert list(pool.map(abs, [-1])) == [1]",
    "manager": "with multiprocessing.Manager() as m: m.dict()['a'] = 1",
    "torch_spawn": "torch.multiprocessing.spawn(print, nprocs=2)",
    "loader_workers": "assert len(list(torch.utils.data.DataLoader(range(4), num_workers=2))) == 4",
    "kill": "os.kill(VICTIM, 9)",
    "c_kill": "ctypes.CDLL(None).kill(VICTIM, 9)",
    "affinity": "os.sched_setaffinity(VICTIM, {0})",
    "priority": "os.setpriority(os.PRIO_PROCESS, VICTIM, 19)",
    "wait_for_any": "pid = os.fork()\nif not pid: os._exit(0)\nassert os.wait() == (pid, 0)",
    "c_program": "assert ctypes.CDLL(None).execveat(-100, b'/bin/true', None, None, 0) == -1",
    "raise_signal": "signal.raise_signal(signal.SIGTERM)",
    "thread_signal": "signal.pthread_kill(threading.get_ident(), signal.SIGTERM)",
    "alarm": "signal.alarm(600)",
    "timer": "signal.setitimer(signal.ITIMER_PROF, 600)",
    "end_later": "faulthandler.dump_traceback_later(600, exit=True); faulthandler.cancel_dump_traceback_later()",
    "semaphore": "_multiprocessing.sem_unlink('/foretrace-nothing')",
    "group": "os.setpgid(VICTIM, 0)",
    "root": "os.chroot(here)",
    "kill_group": "os.killpg(VICTIM, 9)",
}
BY_DESCRIPTOR = {
    "rename_by_descriptor": "fd = os.open(here, os.O_RDONLY); "
    "os.rename('keep.txt', 'new', src_dir_fd=fd, dst_dir_fd=fd)",
    "unlink_by_descriptor": "fd = os.open(here, os.O_RDONLY); os.unlink('keep.txt', dir_fd=fd)",
    "open_by_descriptor": "fd = os.open(here, os.O_RDONLY)\n"
    "os.write(os.open('new', os.O_CREAT | os.O_WRONLY, dir_fd=fd), b'x')",
    "mkdir_by_descriptor": "fd = os.open(here, os.O_RDONLY); os.mkdir('new', dir_fd=fd)",
    "rmdir_by_descriptor": "fd = os.open(here, os.O_RDONLY); os.rmdir('empty', dir_fd=fd)",
    "link_by_descriptor": "fd = os.open(here, os.O_RDONLY); os.link('keep.txt', 'new', src_dir_fd=fd, dst_dir_fd=fd)",
    "symlink_by_descriptor": "fd = os.open(here, os.O_RDONLY); os.symlink('keep.txt', 'new', dir_fd=fd)",
    "rmtree_by_descriptor": "fd = os.open(here, os.O_RDONLY); shutil.rmtree('full', dir_fd=fd)",
    "chmod_by_descriptor": "fd = os.open(here / 'keep.txt', os.O_RDONLY); os.fchmod(fd, 0o777)",
    "utime_by_descriptor": "fd = os.open(here / 'keep.txt', os.O_RDONLY); os.utime(fd, (1, 1))",
    "owner": "os.chown(here / 'keep.txt', 1, 1)",
    "link_owner": "os.lchown(here / 'link', 1, 1)",
    "node": "os.mknod(here / 'new')",
    "fifo_by_descriptor": "fd = os.open(here, os.O_RDONLY); os.mkfifo('new', dir_fd=fd)",
    "in_the_working_folder": "before = os.getcwd(); os.chdir(here)\ntry: open('new', 'w').write('x')\n"
    "finally: os.chdir(before)",
    "in_a_folder_by_descriptor": "before = os.getcwd(); os.fchdir(os.open(here, os.O_RDONLY))\n"
    "try: os.remove('keep.txt')\nfinally: os.chdir(before)",
    "through_proc": "open('/proc/self/root' + str(here / 'new'), 'w').write('x')",
    "through_the_descriptors_of_proc": "fd = os.open(here / 'keep.txt', os.O_RDONLY)\n"
    "open(f'/proc/self/fd/{fd}', 'w').write('x')",
    "up_and_down": "open(here / 'empty' / '..' / 'keep.txt', 'w').write('x')",
    "write_at": "fd = os.open(here / 'keep.txt', os.O_RDWR); os.pwrite(fd, b'x', 0)",
    "send_file": "a, b = os.open(here / 'keep.txt', os.O_RDONLY), os.open(here / 'data.bin', os.O_WRONLY)\n"
    "os.sendfile(b, a, 0, 8)",
    "copy_range": "a, b = os.open(here / 'keep.txt', os.O_RDONLY), os.open(here / 'data.bin', os.O_RDWR)\n"
    "os.copy_file_range(a, b, 8)",
    "allocate": "os.posix_fallocate(os.open(here / 'data.bin', os.O_RDWR), 0, 4096)",
    "temporary_file_elsewhere": "fd, name = tempfile.mkstemp(dir=here); os.write(fd, b'x')",
    "temporary_folder_elsewhere": "tempfile.mkdtemp(dir=here)",
    "attribute": "try: os.setxattr(here / 'keep.txt', 'user.a', b'b')\nexcept OSError: pass",
}
BY_LIBRARY = {
    "codecs": "codecs.open(str(here / 'new'), 'w', 'utf8').write('x')",
    "in_place": "with fileinput.input(str(here / 'keep.txt'), inplace=True) as lines:\n    for line in lines: pass",
    "lzma": "lzma.open(here / 'new.xz', 'wb').write(b'x')",
    "dbm": "dbm.dumb.open(str(here / 'new'), 'c')['a'] = 'b'",
    "mailbox": "mailbox.mbox(here / 'new').flush()",
    "marshal": "marshal.dump(1, open(here / 'new', 'wb'))",
    "wave": "w = wave.open(str(here / 'new.wav'), 'wb'); w.setnchannels(1); w.setsampwidth(2); "
    "w.setframerate(8000); w.close()",
    "xml": "xml.etree.ElementTree.ElementTree(xml.etree.ElementTree.Element('a')).write(here / 'new')",
    "settings": "configparser.ConfigParser().write(open(here / 'new', 'w'))",
    "unpack": "shutil.make_archive(str(here / 'new'), 'tar', here / 'full')\n"
    "shutil.unpack_archive(str(here / 'new.tar'), here / 'new')",
    "archive_of_a_folder": "shutil.make_archive(str(here / 'new'), 'zip', here / 'full')",
    "copy_mode": "shutil.copymode(here / 'data.bin', here / 'keep.txt'); "
    "shutil.copystat(here / 'data.bin', here / 'keep.txt')",
    "compile_all": "(here / 'm.py').touch(); compileall.compile_dir(str(here), quiet=1)",
    "profile": "cProfile.run('1', str(here / 'new'))",
    "memory_profile": "tracemalloc.start(); tracemalloc.take_snapshot().dump(str(here / 'new')); tracemalloc.stop()",
    "crash_log": "faulthandler.enable(open(here / 'new', 'w')); faulthandler.disable()",
    "log_settings": "logging.config.dictConfig({'version': 1, 'disable_existing_loggers': False, 'handlers':\n"
    "    {'h': {'class': 'logging.FileHandler', 'filename': str(here / 'new.log')}},\n"
    "    'loggers': {str(here): {'handlers': ['h']}}}); logging.getLogger(str(here)).error('x')",
    "log_by_time": "logging.handlers.TimedRotatingFileHandler(here / 'new.log').emit(logging.makeLogRecord({}))",
    "log_that_is_watched": "logging.handlers.WatchedFileHandler(here / 'new.log').emit(logging.makeLogRecord({}))",
    "log_from_memory": "logging.handlers.MemoryHandler(1, target=logging.FileHandler(here / 'new.log')).emit(\n"
    "    logging.makeLogRecord({'levelno': 50, 'levelname': 'E'}))",
    "environment": "venv.create(here / 'new', with_pip=False, symlinks=True)",
    "application": "zipapp.create_archive(here / 'full', here / 'new.pyz', main='a:b')",
    "memmap_anew": "np.lib.format.open_memmap(here / 'new.npy', 'w+', shape=(3,))[:] = 1",
    "numpy_compressed": "np.savez_compressed(here / 'new.npz', np.ones(3))",
    "numpy_dump": "np.ones(3).dump(here / 'new')",
    "sqlite_backup": "sqlite3.connect(':memory:').backup(sqlite3.connect(here / 'new.db'))",
    "sqlite_by_address": "sqlite3.connect(f'file:{here}/new.db?mode=rwc', uri=True).execute('create table a (b)')",
    "scipy_matrix": "import scipy.io; scipy.io.savemat(here / 'new.mat', {'a': np.ones(3)})",
    "yaml": "import yaml; yaml.safe_dump({'a': 1}, open(here / 'new', 'w'))",
    "fsspec": "import fsspec; fsspec.open(f'file://{here}/new', 'w').open().write('x')",
}
BY_TORCH_AND_PYTHON = {
    "storage_from_a_file": "torch.UntypedStorage.from_file(str(here / 'data.bin'), True, 16)",
    "old_format": "torch.save(model.state_dict(), here / 'keep.txt', _use_new_zipfile_serialization=False)",
    "graph_to_a_folder": "torch.fx.symbolic_trace(model).to_folder(here / 'new', 'M')",
    "package": "with torch.package.PackageExporter(here / 'new.pt') as e: e.save_pickle('a', 'b', 1)",
    "download": "torch.hub.download_url_to_file(f'http://127.0.0.1:{PORT}/', str(here / 'new'))",
    "chrome_trace": "with torch.profiler.profile() as p: pass\np.export_chrome_trace(str(here / 'new.json'))",
    "process_group_of_a_file": "torch.distributed.HashStore(); next(rendezvous(f'file://{here}/new', 0, 1))",
    "numpy_of_a_tensor": "torch.ones(4).numpy().tofile(here / 'new')",
    "thread_later": "t = threading.Timer(0.01, (here / 'new').touch); t.start(); t.join()",
    "raw_thread": "done = _thread.allocate_lock(); done.acquire()\n"
    "def work():\n    try: (here / 'new').touch()\n    finally: done.release()\n"
    "_thread.start_new_thread(work, ()); done.acquire()",
    "pool_of_threads": "with ThreadPoolExecutor(1) as pool: pool.submit((here / 'new').touch).result()",
    "later": "asyncio.run(asyncio.to_thread((here / 'new').touch))",
    "when_collected": "class Gone:\n    def __del__(self): (here / 'new').touch()\nGone()",
    "when_garbage_is_collected": "def touch(phase, info): gc.callbacks.remove(touch); (here / 'new').touch()\n"
    "gc.callbacks.append(touch); gc.collect()",
    "when_traced": "def trace(*_): sys.setprofile(None); (here / 'new').touch()\nsys.setprofile(trace); abs(1)",
    "own_signal": "signal.signal(signal.SIGUSR1, lambda *_: (here / 'new').touch()); "
    "os.kill(os.getpid(), signal.SIGUSR1)",
    "handled_signal": "signal.signal(signal.SIGUSR1, lambda *_: (here / 'new').touch()); "
    "signal.raise_signal(signal.SIGUSR1)",
    "when_attribute_is_read": "class Lazy:\n    def __getattr__(self, name): return (here / name).touch()\nLazy().new",
    "codes": "exec(f\"open({str(here / 'new')!r}, 'w').write('x')\")",
    "by_c_of_python": "ctypes.pythonapi.PyRun_SimpleString(f\"open({str(here / 'new')!r}, 'w')\".encode())",
    "called_by_c": "ctypes.CFUNCTYPE(None)(lambda: (here / 'new').touch() and None)()",
}
BY_C = {
    "c_create": "assert ctypes.CDLL(None).creat(bytes(here / 'new'), 0o644) == -1",
    "c_stream": "assert not ctypes.CDLL(None).fopen(bytes(here / 'new'), b'w')",
    "c_rename": "assert ctypes.CDLL(None).rename(bytes(here / 'keep.txt'), bytes(here / 'new')) == -1",
    "c_truncate": "assert ctypes.CDLL(None).truncate(bytes(here / 'keep.txt'), 0) == -1",
    "c_mkdir": "assert ctypes.CDLL(None).mkdir(bytes(here / 'new'), 0o755) == -1",
    "c_remove": "assert ctypes.CDLL(None).remove(bytes(here / 'keep.txt')) == -1",
    "c_symlink": "assert ctypes.CDLL(None).symlink(b'keep.txt', bytes(here / 'new')) == -1",
    "c_link": "assert ctypes.CDLL(None).link(bytes(here / 'keep.txt'), bytes(here / 'new')) == -1",
    "c_attribute": "ctypes.CDLL(None).setxattr(bytes(here / 'keep.txt'), b'user.a', b'b', 1, 0)",
    "c_owner": "ctypes.CDLL(None).chown(bytes(here / 'keep.txt'), 1, 1)",
    "c_io_uring": "assert ctypes.CDLL(None).syscall(425, 8, bytes(120)) == -1",
    "c_call_rename": "assert ctypes.CDLL(None).syscall(82, bytes(here / 'keep.txt'), bytes(here / 'new')) == -1",
    "c_call_kill": "ctypes.CDLL(None).syscall(62, VICTIM, 9)",
    "c_call_fork": "assert ctypes.CDLL(None).syscall(57) == -1",
    "c_call_clone": "assert ctypes.CDLL(None).syscall(56, 17, 0, 0, 0, 0) == -1",
    "c_call_socket": "assert ctypes.CDLL(None).syscall(42, 3, bytes(16), 16) == -1",
    "c_call_trace": "assert ctypes.CDLL(None).syscall(101, 16, VICTIM, 0, 0) == -1",
    "c_call_memory_of_another": "assert ctypes.CDLL(None).syscall(311, VICTIM, 0, 0, 0, 0, 0) == -1",
    "c_mount": "assert ctypes.CDLL(None).mount(b'none', bytes(here / 'empty'), b'tmpfs', 0, 0) == -1",
    "c_signal": "ctypes.CDLL(None).sigqueue(VICTIM, 9, 0)",
    "c_vfork": "assert ctypes.CDLL(None).vfork() == -1",
    "c_spawn": "assert ctypes.CDLL(None).posix_spawn(0, b'/bin/true', 0, 0, 0, 0) != 0",
    "c_popen": "assert not ctypes.CDLL(None).popen(f'touch {here}/new'.encode(), b'w')",
    "c_priority": "ctypes.CDLL(None).setpriority(0, VICTIM, 19)",
}
BY_PROCESS = {
    "output_of_a_program": "assert subprocess.getoutput(f'touch {here}/new') == ''",
    "program_in_a_session": "subprocess.call(['touch', str(here / 'new')], start_new_session=True)",
    "fork_server": "p = multiprocessing.get_context('forkserver').Process(target=print); p.start(); p.join()",
    "forked_pool": "with ProcessPoolExecutor(1, multiprocessing.get_context('fork')) as p: p.submit(abs, -1).result()",
    "program_in_memory": "fd = os.memfd_create('a'); os.write(fd, b'#!/bin/true\\n')\nos.execve(fd, ['a'], {})",
    "program_by_descriptor": "subprocess.run(['touch', 'new'], cwd=here, pass_fds=())",
    "module": "subprocess.run([sys.executable, '-c', 'open(\"new\", \"w\")'], cwd=here)",
    "browser": "webbrowser.open('http://127.0.0.1')",
    "remote_call": "try: xmlrpc.client.ServerProxy(f'http://127.0.0.1:{PORT}').f()\n"
    "except xml.parsers.expat.ExpatError: pass",
    "ftp": "ftplib.FTP('127.0.0.1').quit()",
    "mailbox_server": "try: imaplib.IMAP4('127.0.0.1', PORT)\nexcept Exception: pass",
    "datagram_server": "socketserver.UDPServer(('127.0.0.1', 0), socketserver.BaseRequestHandler).server_close()",
    "create_server": "socket.create_server(('127.0.0.1', 0)).close()",
    "asyncio_server": "async def serve(): (await asyncio.start_server(print, '127.0.0.1', 0)).close()\n"
    "asyncio.run(serve())",
    "asyncio_datagram": "async def send():\n"
    "    loop = asyncio.get_running_loop()\n"
    "    t, _ = await loop.create_datagram_endpoint(asyncio.DatagramProtocol, remote_addr=('127.0.0.1', PORT))\n"
    "    t.sendto(b'x'); t.close()\nasyncio.run(send())",
    "connected_datagram": "s = socket.socket(type=socket.SOCK_DGRAM); s.connect(('127.0.0.1', PORT)); s.send(b'x')",
    "message_datagram": "socket.socket(type=socket.SOCK_DGRAM).sendmsg([b'x'], [], 0, ('127.0.0.1', PORT))",
    "six": "s = socket.socket(socket.AF_INET6); s.connect(('::1', PORT))",
    "group_of_processes": "os.kill(-1 * os.getpgid(VICTIM), 9)",
    "descriptor_of_a_process": "signal.pidfd_send_signal(os.pidfd_open(VICTIM), 9)",
    "scheduler": "os.sched_setscheduler(VICTIM, os.SCHED_BATCH, os.sched_param(0))",
    "limits": "resource.prlimit(VICTIM, resource.RLIMIT_NOFILE, (5, 5))",
    "memory_of_another": "try: open(f'/proc/{VICTIM}/mem', 'r+b')\nexcept OSError: pass",
    "score_of_another": "try: open(f'/proc/{VICTIM}/oom_score_adj', 'w').write('500')\nexcept OSError: pass",
}
LIBRARIES = {
    "urllib3": "assert urllib3.PoolManager().request('POST', f'http://127.0.0.1:{PORT}/', body=b'x').status == 200",
    "requests": "assert requests.get(f'http://127.0.0.1:{PORT}/').ok",
    "httpx": "assert httpx.post(f'http://127.0.0.1:{PORT}/', content=b'x').status_code == 200",
    "redis": "redis.Redis(port=PORT).set('a', 'b'); redis.Redis(port=PORT).pipeline().set('a', 'b').execute()",
    "cffi": "f = cffi.FFI(); f.cdef('int unlink(const char *);'); f.dlopen(None).unlink(bytes(here / 'keep.txt'))",
    "joblib": "assert joblib.Parallel(2)(joblib.delayed(abs)(-i) for i in range(2)) == [0, 1]",
    "zmq": "s = zmq.Context().socket(zmq.PUSH); s.connect(f'tcp://127.0.0.1:{PORT}'); s.send(b'x')",
    "psutil": "psutil.Process(VICTIM).nice(19); psutil.Process(VICTIM).kill()",
    "pyarrow": "with pyarrow.OSFile(str(here / 'keep.txt'), 'wb') as file: file.write(b'x')",
    "pyarrow.feather": "pyarrow.feather.write_feather(pyarrow.table({'a': [1]}), str(here / 'keep.txt'))",
    "pyarrow.csv": "pyarrow.csv.write_csv(pyarrow.table({'a': [1]}), here / 'keep.txt')",
    "pyarrow.ipc": "pyarrow.ipc.new_file(str(here / 'keep.txt'), pyarrow.table({'a': [1]}).schema).close()",
    "lightgbm": "x = np.random.rand(40, 2); rows = lightgbm.Dataset(x, x[:, 0], params={'verbose': -1})\n"
    "lightgbm.train({'verbose': -1}, rows, 1).save_model(str(here / 'keep.txt'))",
    "tensordict": "tensordict.TensorDict({'a': torch.ones(3)}, [3]).memmap(here / 'new')",
    "h5py": "h5py.h5f.create(bytes(here / 'new')).close()",
    "cv2": "assert cv2.imwrite(str(here / 'new.png'), np.zeros((4, 4, 3), np.uint8))",
    "polars": "polars.DataFrame({'a': [1]}).write_parquet(here / 'keep.txt')",
    "duckdb": "duckdb.connect(str(here / 'new')).execute('create table a(b int)')",
    "lmdb": "with lmdb.open(str(here / 'new')).begin(write=True) as t: t.put(b'a', b'b')",
}
"""By what one installs; those that are absent are left out."""
INSTALLED = {
    name.replace(".", "_"): f"import {name}\n{attempt}"
    for name, attempt in LIBRARIES.items()
    if find_spec(name.partition(".")[0])
}
MORE = {**BY_DESCRIPTOR, **BY_LIBRARY, **BY_TORCH_AND_PYTHON, **BY_C, **BY_PROCESS}
ATTEMPTS = {**FILES, **SAVERS, **NETWORK, **PROCESSES, **MORE, **INSTALLED}

IMPORTS = """
import _multiprocessing, _socket, _thread, asyncio, atexit, bz2, cProfile, codecs, compileall, configparser, csv, ctypes
import dbm.dumb, faulthandler, fcntl, fileinput, ftplib, gc, gzip, http.client, http.server, imaplib, io, json, logging
import logging.config, logging.handlers, lzma, mailbox, marshal, mmap, multiprocessing, multiprocessing.connection, os
import pickle, pty, py_compile, resource, shelve, shutil, signal, smtplib, socket, socketserver, sqlite3, ssl
import subprocess
import sys, syslog, tarfile, tempfile, threading, time, tracemalloc, urllib.request, venv, wave, weakref, webbrowser
import xml.etree.ElementTree, xml.parsers.expat, xmlrpc.client, zipapp, zipfile
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path
from queue import Queue
try: import _interpreters as interpreters
except ImportError: import _xxsubinterpreters as interpreters
import numpy as np
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.rendezvous import rendezvous
import foretrace.record.guard.side_effects
foretrace.record.guard.side_effects.MAX_NOTED = 1000  # all of them, for once

class Writer:  # as SummaryWriter writes
    def __init__(self, folder):
        os.makedirs(folder, exist_ok=True)
        self.queue, self.path = Queue(), folder / "events"
        self.thread = threading.Thread(target=self.run)
        self.thread.start()
    def run(self):
        with open(self.path, "a") as file:
            while (item := self.queue.get()) is not None:
                file.write(f"{item}\\n")
    def add_scalar(self, *item):
        self.queue.put(item)
    def close(self):
        self.queue.put(None)
        self.thread.join()

model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
"""
STEP = """
def make_step():
    def step():
        optimizer.zero_grad()
        model(torch.ones(4, 8)).sum().backward()
        optimizer.step()
        while IN_STEP:  # once each: a folder can't be made twice
            IN_STEP.pop(0)()
    return step
"""
LOOP = """
if __name__ == "__main__":
    for _ in range(1_000_000):
        optimizer.zero_grad()
        model(torch.ones(4, 8)).sum().backward()
        optimizer.step()
        while IN_STEP:
            IN_STEP.pop(0)()
"""


def script_of(
    attempts: dict[str, str], places: dict[tuple[str, str], str], port: int, victim: int, step: str = STEP
) -> str:
    """A script that makes each attempt once at its top level and once in its step; ``places`` are their folders."""
    parts = [IMPORTS, f"PORT, VICTIM, IN_STEP = {port}, {victim}, []"]
    for (name, where), folder in places.items():
        body = f"here = Path({folder!r})\n{attempts[name]}"
        parts.append(f"def {where}_{name}():\n{indent(body, '    ')}")
        parts.append(f"{where}_{name}()" if where == "top" else f"IN_STEP.append({where}_{name})")
    return "\n".join([*parts, step])


def lines_of(script: str, name: str) -> range:
    """The lines of an attempt in the script."""
    lines = script.splitlines()
    start = lines.index(f"def {name}():") + 1
    end = next(number for number, line in enumerate(lines[start:], start) if not line.startswith(" "))
    return range(start, end + 1)
