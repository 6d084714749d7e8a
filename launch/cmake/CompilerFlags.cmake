# Language level, warnings and sanitizers of every target.
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)

if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "Build type" FORCE)
endif()
# -O2 without assertions; kernels set more if measurements show a gain.
set(CMAKE_CXX_FLAGS_RELEASE "-O2 -DNDEBUG")

option(JFORGE_WERROR "Treat warnings as errors (CI sets it)" OFF)
set(JFORGE_SANITIZER "" CACHE STRING "Sanitizers to build with: address,undefined or thread")

# An interface target, so that third-party headers never see our warnings.
add_library(jforge_compile_options INTERFACE)
# Cuda.cmake sets nvcc's warnings.
target_compile_options(jforge_compile_options INTERFACE
  $<$<COMPILE_LANGUAGE:C,CXX>:-Wall;-Wextra;-Wconversion;-Wshadow>)
# GCC takes sources that JFORGE_UNITY merges for headers.
target_compile_options(jforge_compile_options INTERFACE
  $<$<AND:$<COMPILE_LANG_AND_ID:CXX,GNU>,$<BOOL:$<TARGET_PROPERTY:UNITY_BUILD>>>:-Wno-subobject-linkage>)
# GCC 12 warns falsely about moved std::variant and std::optional members.
target_compile_options(jforge_compile_options INTERFACE
  $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-Wno-maybe-uninitialized>)
# GCC collects garbage only beyond 4 GB: a tenth of the compile time for a fifth more memory.
target_compile_options(jforge_compile_options INTERFACE
  "$<$<COMPILE_LANG_AND_ID:CXX,GNU>:SHELL:--param ggc-min-heapsize=4000000>")
if(JFORGE_WERROR)
  target_compile_options(jforge_compile_options INTERFACE $<$<COMPILE_LANGUAGE:C,CXX>:-Werror>)
endif()
option(JFORGE_FUZZ "Build the fuzzers of tests/fuzz (needs clang) and nothing else of the tests" OFF)
if(JFORGE_FUZZ)
  if(NOT CMAKE_CXX_COMPILER_ID MATCHES Clang)
    message(FATAL_ERROR "JFORGE_FUZZ needs clang: -DCMAKE_C_COMPILER=clang -DCMAKE_CXX_COMPILER=clang++")
  endif()
  add_compile_options(-fsanitize=fuzzer-no-link,address,undefined -fno-omit-frame-pointer -O1 -g1)
  add_compile_options("$<$<COMPILE_LANGUAGE:CXX>:SHELL:-include ${CMAKE_SOURCE_DIR}/tests/fuzz/source_location.h>")
  add_link_options(-fsanitize=address,undefined)
endif()
if(JFORGE_SANITIZER)
  add_compile_options(-fsanitize=${JFORGE_SANITIZER} -fno-omit-frame-pointer -g)
  add_link_options(-fsanitize=${JFORGE_SANITIZER})
endif()
