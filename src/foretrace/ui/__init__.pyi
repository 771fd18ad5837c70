from foretrace.ui.folder import Folder as Folder
from foretrace.ui.server import Server as Server
