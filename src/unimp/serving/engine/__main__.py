"""`python -m unimp.serving.engine RUN GENERATION`, started by the front."""

from unimp.serving.engine.process import main

main()
