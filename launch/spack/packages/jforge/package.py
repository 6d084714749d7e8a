from pathlib import Path

from spack.package import *


class Jforge(CMakePackage, CudaPackage):
    """Turns an autoregressive language model into a parallel decoder by Jacobi Forcing."""

    # The checkout that holds this file.
    git = Path(__file__).resolve().parents[4].as_uri()
    license("Apache-2.0")

    version("main", branch="main")

    depends_on("c", type="build")
    depends_on("cxx", type="build")
    depends_on("cmake@3.25:", type="build")
    depends_on("ninja", type="build")
    depends_on("pkgconfig", type="build")
    depends_on("cuda@12.4:", when="+cuda")
    depends_on("mpi")
    depends_on("hdf5~mpi")
    for library in ("bzip2", "cli11", "fmt", "icu4c", "libseccomp", "nlohmann-json", "pcre2",
                    "simdjson", "spdlog +fmt_external", "tomlplusplus", "xxhash", "zlib-api", "zstd"):
        depends_on(library)
    depends_on("py-jinja2@3.1:", type="run")

    conflicts("%gcc@:11", msg="C++20 as GCC 12 has it")
    generator("ninja")

    def cmake_args(self):
        return [self.define("JFORGE_TESTS", False), self.define_from_variant("JFORGE_CUDA", "cuda")]
