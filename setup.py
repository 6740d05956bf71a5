"""Build the native code: plain shared libraries that do not link against Python or torch.

The core computes attention and samples neighbors; the library of the store builds graphs on disk.
Everything else about the package is declared in pyproject.toml. If there is no working compiler,
the package installs without them, computes attention with torch alone and builds stores with numpy.
"""

from __future__ import annotations

import platform
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext

FOLDER = Path("src/unimp/ops/native")
STORE = Path("src/unimp/data/store/store.cpp")
FLAGS = [
    "-std=c++17",
    "-O3",
    "-g0",
    "-fno-math-errno",
    "-ffp-contract=fast",
    "-fvisibility=default",
]
PLAIN = ("pages.cpp", "sampling.cpp", "tiles.cpp")
# These are compiled once per instruction set.
VECTORIZED = ("attention.cpp", "dropout.cpp", "residual.cpp", "sums.cpp")
AVX2 = ["-mavx2", "-mfma"]
AVX512 = [*AVX2, *(f"-mavx512{part}" for part in ("f", "dq", "vl", "bw"))]
# name → bytes per vector, flags
INSTRUCTION_SETS = {"baseline": (16, [])}
if platform.machine().lower() in ("x86_64", "amd64"):
    INSTRUCTION_SETS |= {"avx2": (32, AVX2), "avx512": (64, [*AVX512, "-mprefer-vector-width=512"])}


def checksum(paths: list[Path]) -> int:
    """Checksum of sources, which Python compares when it loads the library."""
    total = 0
    for path in sorted(paths):
        total = zlib.crc32(path.read_bytes().replace(b"\r\n", b"\n"), total)
    return total


class BuildCore(build_ext):
    """Compile the vectorized sources once per instruction set; continue if that fails."""

    def get_ext_filename(self, fullname: str) -> str:
        """Path of the library, without the tag of a Python version: it serves all of them."""
        return str(Path(*fullname.split(".")).with_suffix(".so"))

    def build_extension(self, ext: Extension) -> None:
        try:
            if ext.name.endswith("_store"):
                self._build_store(ext)
            else:
                self._build_core(ext)
        except Exception as error:  # whatever a compiler, or its absence, can raise
            self.warn(
                f"The native core was not built ({error}). unimp works without {ext.name}, but "
                "slower. To build it, install a C++17 compiler such as g++ and reinstall unimp."
            )

    def _build_core(self, ext: Extension) -> None:
        openmp = ["-Xpreprocessor", "-fopenmp"] if platform.system() == "Darwin" else ["-fopenmp"]
        files = [*FOLDER.glob("*.cpp"), *FOLDER.glob("*.h")]
        sources = f"-DUNIMP_SOURCES={checksum(files)}u"
        jobs = [("core.cpp", "shared", [sources])]
        jobs += [(source, "shared", []) for source in PLAIN]
        for name, (size, flags) in INSTRUCTION_SETS.items():
            macros = [f"-DUNIMP_ISA={name}", f"-DUNIMP_VECTOR_BYTES={size}"]
            jobs += [(source, name, [*macros, *flags]) for source in VECTORIZED]

        def compile_one(job: tuple[str, str, list[str]]) -> list[str]:
            source, folder, flags = job
            return self.compiler.compile(
                [str(FOLDER / source)],
                output_dir=str(Path(self.build_temp) / folder),
                extra_postargs=[*FLAGS, *openmp, *flags],
            )

        with ThreadPoolExecutor() as pool:
            objects = [name for names in pool.map(compile_one, jobs) for name in names]
        self._link(ext, objects, openmp[-1:])

    def _build_store(self, ext: Extension) -> None:
        sources = f"-DUNIMP_SOURCES={checksum([STORE])}u"
        folder = str(Path(self.build_temp) / "store")
        objects = self.compiler.compile(
            [str(STORE)], output_dir=folder, extra_postargs=[*FLAGS, sources]
        )
        self._link(ext, objects, [])

    def _link(self, ext: Extension, objects: list[str], flags: list[str]) -> None:
        target = self.get_ext_fullpath(ext.name)
        Path(target).parent.mkdir(parents=True, exist_ok=True)
        self.compiler.link_shared_object(objects, target, extra_postargs=flags, target_lang="c++")


class PlatformWheel(bdist_wheel):
    """Tag the wheel py3-none-<platform>: it depends on the platform but on no Python version."""

    def get_tag(self) -> tuple[str, str, str]:
        return "py3", "none", super().get_tag()[2]


sources = [str(FOLDER / name) for name in ("core.cpp", *PLAIN, *VECTORIZED)]
headers = [str(FOLDER / name) for name in ("core.h", "lanes.h", "pages.h", "rows.h")]
setup(
    ext_modules=[
        Extension("unimp.ops.native._core", sources, depends=headers, optional=True),
        Extension("unimp.data.store._store", [str(STORE)], optional=True),
    ],
    cmdclass={"build_ext": BuildCore, "bdist_wheel": PlatformWheel},
)
