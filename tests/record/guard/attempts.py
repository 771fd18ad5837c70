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
ATTEMPTS = {**FILES, **SAVERS, **NETWORK, **PROCESSES, **INSTALLED}

IMPORTS = """
import _multiprocessing, _socket, asyncio, atexit, bz2, csv, ctypes, faulthandler, fcntl, gzip, http.client
import http.server, io, json, logging, logging.handlers, mmap, multiprocessing, multiprocessing.connection, os, pickle
import pty, py_compile, shelve, shutil, signal, smtplib, socket, socketserver, sqlite3, ssl, subprocess, syslog, tarfile
import tempfile, threading, time, urllib.request, weakref, zipfile
from concurrent.futures import ProcessPoolExecutor
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
