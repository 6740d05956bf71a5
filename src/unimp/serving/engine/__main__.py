"""`python -m unimp.serving.engine RUN [WEIGHTS]`, started by the front."""

from unimp.serving.engine.process import main

main()
