from foretrace.record.command import Script as Script
from foretrace.record.command import find_script as find_script
from foretrace.record.recording import load_recording as load_recording
from foretrace.record.script import sketch_command as sketch_command
from foretrace.record.script import sketch_script as sketch_script
