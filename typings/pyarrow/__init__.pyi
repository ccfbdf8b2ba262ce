# pyarrow's types live in compiled modules without stubs; with compute.pyi beside it, this file has
# to be here too.
from typing import Any

def __getattr__(name: str) -> Any: ...
