from foretrace.formats.chakra.read import read_chakra as read_chakra
from foretrace.formats.chakra.write import write_chakra as write_chakra
