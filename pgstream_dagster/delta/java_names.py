"""
The JVM's names, each looked up once: py4j searches every jar again at each use, about 1 ms.

PySpark looks up a class or two for every `F.col(...)`, so that a query of a hundred expressions
spent a quarter of its planning on names.
"""

from __future__ import annotations

from typing import Any

from py4j.java_gateway import JavaClass, JavaGateway, JavaPackage, JVMView


class RememberedPackage(JavaPackage):
    """A Java package whose classes and packages are looked up once."""

    def __getattr__(self, name: str) -> Any:
        return _remember(self, name, super().__getattr__(name))


class RememberedNames(JVMView):
    """The root of all packages, and PySpark's imported classes, looked up once."""

    def __getattr__(self, name: str) -> Any:
        return _remember(self, name, super().__getattr__(name))


def remember_names(gateway: JavaGateway) -> None:
    """Make `gateway.jvm`, which PySpark uses too, remember the names that it has looked up."""
    view: Any = gateway.jvm
    gateway.jvm = RememberedNames(view._gateway_client, view._jvm_name, view._id)  # noqa: SLF001


def _remember(owner: Any, name: str, answer: Any) -> Any:
    """
    `answer`, from now on an attribute of `owner`.

    A name in upper case that is no class yet may become one: PySpark asks so whether a jar is
    there. It is looked up again.
    """
    if isinstance(answer, JavaPackage) and name.islower():
        package: Any = answer
        names = (package._fqn, package._gateway_client, package._jvm_id)  # noqa: SLF001
        answer = RememberedPackage(*names)
    if isinstance(answer, (JavaClass, RememberedPackage)):
        owner.__dict__[name] = answer
    return answer
