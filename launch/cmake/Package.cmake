# `cmake --install BUILD --prefix P`, or `cpack -G DEB` in the build folder. Installs:
#   bin/jforge                      the binary, which needs only Debian's packages at run time
#   share/jforge/launch/scripts     scripts for one machine, a cluster, Slurm
#   share/jforge/launch/configs     example configurations
#   share/jforge/launch/quickstart  the small model and its prompts; quickstart.toml names them relative to share/jforge
#   share/jforge/modulefiles        the module file `jforge`
#   share/doc/jforge                the documents
#   share/man, and Debian's completion folders for bash, zsh and fish: of help2man, if it is there, and `jforge completion`
include(GNUInstallDirs)
set(share "${CMAKE_INSTALL_DATADIR}/jforge/launch")
install(TARGETS jforge RUNTIME)
install(PROGRAMS launch/scripts/local_mpirun.sh launch/scripts/run_cluster.sh launch/scripts/run_slurm.sbatch
        launch/scripts/signal_shield.sh launch/scripts/math_values.py DESTINATION ${share}/scripts)
install(FILES launch/scripts/mpi_env.sh launch/scripts/mpi_launcher.sh launch/scripts/outlive_readers.sh DESTINATION ${share}/scripts)
install(FILES launch/scripts/modulefile DESTINATION ${CMAKE_INSTALL_DATADIR}/jforge/modulefiles RENAME jforge)
install(DIRECTORY launch/configs launch/quickstart DESTINATION ${share} USE_SOURCE_PERMISSIONS
        PATTERN __pycache__ EXCLUDE)
install(FILES README.md ARCHITECTURE.md CHANGELOG.md LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR})
install(DIRECTORY docs DESTINATION ${CMAKE_INSTALL_DOCDIR})
install(FILES LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR} RENAME copyright)
if(NOT JFORGE_SANITIZER)
  set(shell_files "${CMAKE_BINARY_DIR}/generated/shell")
  install(FILES "${shell_files}/jforge.1" DESTINATION ${CMAKE_INSTALL_MANDIR}/man1 OPTIONAL)
  install(FILES "${shell_files}/jforge" DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions)
  install(FILES "${shell_files}/_jforge" DESTINATION ${CMAKE_INSTALL_DATADIR}/zsh/vendor-completions)
  install(FILES "${shell_files}/jforge.fish" DESTINATION ${CMAKE_INSTALL_DATADIR}/fish/vendor_completions.d)
endif()

set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME jforge)
set(CPACK_PACKAGE_VERSION "${PROJECT_VERSION}")
set(CPACK_PACKAGE_CONTACT "The Jacobi Forge developers <jforge@localhost>")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "turns an autoregressive language model into a parallel decoder")
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION science)
# dpkg-shlibdeps finds only libraries, not mpirun and the programs that grade generated code.
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_DEPENDS openmpi-bin)
set(CPACK_DEBIAN_PACKAGE_RECOMMENDS "bubblewrap, python3, python3-jinja2, python3-numpy")
set(CPACK_PRE_BUILD_SCRIPTS "${CMAKE_SOURCE_DIR}/launch/cmake/CompressManPage.cmake")
include(CPack)
