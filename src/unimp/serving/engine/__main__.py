"""`python -m unimp.serving.engine RUN [WEIGHTS]`, started by the front."""

import gc

gc.disable()  # imports and loading create many objects and hardly any garbage; `main` enables it

from unimp.serving.engine.process import main  # noqa: E402

main()
