# Sources of a library share the time for headers; no two of them may use a name for different things. Kernels stay apart:
# their speed depends on what the compiler sees together.
option(JFORGE_UNITY "Compile several sources at a time: half the time of a whole build, more for a small change" OFF)
set(CMAKE_UNITY_BUILD_BATCH_SIZE 16)

# jforge_library(NAME SOURCES a.cpp … [LINK targets …] [PRIVATE_LINK targets …])
# Adds a static library (shared with BUILD_SHARED_LIBS, header-only without SOURCES); headers are included from the root.
function(jforge_library name)
  cmake_parse_arguments(ARG "" "" "SOURCES;LINK;PRIVATE_LINK" ${ARGN})
  if(ARG_SOURCES)
    add_library(${name} ${ARG_SOURCES})
    target_include_directories(${name} PUBLIC "${CMAKE_SOURCE_DIR}")
    target_link_libraries(${name} PUBLIC ${ARG_LINK} PRIVATE ${ARG_PRIVATE_LINK} jforge_compile_options)
    # Shared and static libraries compile alike.
    set_target_properties(${name} PROPERTIES DEFINE_SYMBOL "")
    # cuda12_test.py compiles single sources of runtime/.
    if(NOT name MATCHES "kernels|runtime_(comm|tensor)")
      set_target_properties(${name} PROPERTIES UNITY_BUILD ${JFORGE_UNITY})
    endif()
  else()
    add_library(${name} INTERFACE)
    target_include_directories(${name} INTERFACE "${CMAKE_SOURCE_DIR}")
    target_link_libraries(${name} INTERFACE ${ARG_LINK})
  endif()
endfunction()

# Generates a source file with `const char* SYMBOL()`, which returns the text of `file`; sets `out` to its path.
function(jforge_embed_text out file symbol)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${file})
  file(READ ${file} text)
  set(source "${CMAKE_CURRENT_BINARY_DIR}/${symbol}.cpp")
  file(CONFIGURE OUTPUT "${source}" @ONLY CONTENT
       "namespace jforge {\nconst char* @symbol@();\nconst char* @symbol@() { return R\"__text__(@text@)__text__\"; }\n}\n")
  set(${out} "${source}" PARENT_SCOPE)
endfunction()

# For code that computes little, such as commands: saves a fifth of the compile time.
set(JFORGE_QUICK_COMPILE $<$<AND:$<CONFIG:Release>,$<COMPILE_LANGUAGE:CXX>>:-O1>)
# For tests that leave computing to libraries: saves a further quarter.
set(JFORGE_TEST_COMPILE $<$<AND:$<CONFIG:Release>,$<COMPILE_LANGUAGE:CXX>>:-O0>)

# Sets how a test is compiled; `optimized` is TRUE if much of its time is spent in its own sources.
function(jforge_compile_test name optimized)
  set_target_properties(${name} PROPERTIES UNITY_BUILD ${JFORGE_UNITY})
  get_target_property(links ${name} LINK_LIBRARIES)
  if(optimized)
    target_compile_options(${name} PRIVATE ${JFORGE_QUICK_COMPILE})
  else()
    target_compile_options(${name} PRIVATE ${JFORGE_TEST_COMPILE})
  endif()
  # Precompiled headers require equal options.
  if(NOT optimized AND NOT "OpenMP::OpenMP_CXX" IN_LIST links)
    target_precompile_headers(${name} REUSE_FROM jforge_test_headers)
  endif()
endfunction()

# Open MPI's plug-ins leak and are unloaded before LeakSanitizer can name them, so MPI programs run without it.
set(JFORGE_MPI_TEST_ENVIRONMENT "")
if(JFORGE_SANITIZER MATCHES address)
  set(JFORGE_MPI_TEST_ENVIRONMENT "ASAN_OPTIONS=detect_leaks=0:allocator_may_return_null=1:detect_stack_use_after_return=1")
endif()

# add_jforge_test(NAME n SOURCES a_test.cpp … LINK targets … [RANKS 1 2 4] [LABELS …] [TIMEOUT s] [OPTIMIZED])
# Without RANKS: one GoogleTest program. With RANKS: runs under mpirun once per world size, through
# tests/support/mpi_test_main.cpp, which fails on a wrong world size.
function(add_jforge_test)
  cmake_parse_arguments(ARG "OPTIMIZED" "NAME;TIMEOUT" "SOURCES;LINK;RANKS;LABELS" ${ARGN})
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 300)
  endif()
  add_executable(${ARG_NAME} ${ARG_SOURCES})
  target_link_libraries(${ARG_NAME} PRIVATE ${ARG_LINK} jforge_compile_options GTest::gmock)
  jforge_compile_test(${ARG_NAME} ${ARG_OPTIMIZED})
  set(data_environment "JFORGE_SOURCE_DIR=${CMAKE_SOURCE_DIR};JFORGE_BINARY=${CMAKE_BINARY_DIR}/launch/jforge")
  if(ARG_RANKS)
    target_link_libraries(${ARG_NAME} PRIVATE jforge_mpi_test_main)
    foreach(ranks IN LISTS ARG_RANKS)
      add_test(NAME ${ARG_NAME}.ranks${ranks}
               COMMAND ${CMAKE_SOURCE_DIR}/launch/scripts/local_mpirun.sh -n ${ranks} $<TARGET_FILE:${ARG_NAME}> --world-size=${ranks})
      set_tests_properties(${ARG_NAME}.ranks${ranks} PROPERTIES LABELS "distributed;${ARG_LABELS}" TIMEOUT ${ARG_TIMEOUT}
                           PROCESSORS ${ranks} ENVIRONMENT "${data_environment};${JFORGE_MPI_TEST_ENVIRONMENT}")
    endforeach()
  else()
    target_link_libraries(${ARG_NAME} PRIVATE GTest::gtest_main)
    if(NOT ARG_LABELS)
      set(ARG_LABELS unit)
    endif()
    add_test(NAME ${ARG_NAME} COMMAND ${ARG_NAME})
    set_tests_properties(${ARG_NAME} PROPERTIES LABELS "${ARG_LABELS}" TIMEOUT ${ARG_TIMEOUT} ENVIRONMENT "${data_environment}")
  endif()
endfunction()

macro(jforge_subfolders)
  foreach(folder ${ARGN})
    add_subdirectory(${folder})
  endforeach()
endmacro()
