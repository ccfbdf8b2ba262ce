# pyarrow makes its compute functions while it is imported, so no checker can see them.
from typing import Any

def __getattr__(name: str) -> Any: ...
