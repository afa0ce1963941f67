"""What `python -m package.module` runs; also imported under its own name, as programs do."""

from __future__ import annotations

import pickle
import sys


class Held:
    """A class of `__main__` or of this module."""


def main(name: str, package: object, spec: object, held: dict[str, object]) -> None:
    """Show how the module was run."""
    from observed import attributes, described, show

    show(
        name=name,
        package=package,
        spec=[getattr(spec, "name", None), getattr(spec, "origin", None), getattr(spec, "parent", None), getattr(spec, "cached", None)],
        names=list(held),
        main={key: described(value) for key, value in held.items()},
        argv=sys.argv,
        orig_argv=sys.orig_argv,
        path=sys.path,
        pickled=pickle.dumps(Held).hex(),
        sys=attributes(sys),
        loaded=sorted(key for key in sys.modules if key.startswith("package")),
    )


if __name__ == "__main__":
    import package.module

    main(__name__, __package__, __spec__, globals())
    sys.stdout.write(f"{package.module.Held is Held}\n")
    raise SystemExit(4)
