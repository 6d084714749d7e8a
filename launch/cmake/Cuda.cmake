# JFORGE_CUDA=ON|OFF|AUTO. Sets JFORGE_HAS_CUDA; if true, CUDA is enabled and CUDA::cudart and CUDA::cublasLt exist. The
# driver's library is never linked, because a CUDA binary must start on machines without a driver.
set(JFORGE_CUDA OFF CACHE STRING "Build the CUDA kernels: ON, OFF or AUTO (where nvcc is)")
set_property(CACHE JFORGE_CUDA PROPERTY STRINGS ON OFF AUTO)
set(JFORGE_HAS_CUDA FALSE)

if(NOT JFORGE_CUDA MATCHES "^(ON|OFF|AUTO)$")
  message(FATAL_ERROR "JFORGE_CUDA is \"${JFORGE_CUDA}\"; it must be ON, OFF or AUTO")
endif()

if(NOT JFORGE_CUDA STREQUAL "OFF")
  find_program(JFORGE_NVCC nvcc HINTS ENV CUDACXX ENV CUDA_PATH /usr/local/cuda PATH_SUFFIXES bin)
  if(JFORGE_NVCC)
    set(JFORGE_HAS_CUDA TRUE)
  elseif(JFORGE_CUDA STREQUAL "ON")
    message(FATAL_ERROR
      "JFORGE_CUDA=ON needs nvcc, which was not found. Install the CUDA toolkit (12.4 or later: "
      "https://developer.nvidia.com/cuda-downloads, packages cuda-nvcc, cuda-cudart-dev and libcublas-dev), "
      "put nvcc on PATH or set CUDACXX, or configure with -DJFORGE_CUDA=OFF")
  else()
    message(STATUS "JFORGE_CUDA=AUTO: no nvcc, building for the CPU alone")
  endif()
endif()

if(JFORGE_HAS_CUDA)
  if(NOT CMAKE_CUDA_COMPILER)
    set(CMAKE_CUDA_COMPILER "${JFORGE_NVCC}")
  endif()
  # A100 and H100. "-real" generates machine code only; PTX is added below.
  if(NOT CMAKE_CUDA_ARCHITECTURES)
    set(CMAKE_CUDA_ARCHITECTURES "80-real;90a-real" CACHE STRING "CUDA architectures")
  endif()
  enable_language(CUDA)
  # CMake 3.25 does not know nvcc's flag for C++20.
  set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION "-std=c++20")
  set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION "-std=c++20")
  set(CMAKE_CUDA_STANDARD 20)
  set(CMAKE_CUDA_STANDARD_REQUIRED ON)
  set(CMAKE_CUDA_EXTENSIONS OFF)
  find_package(CUDAToolkit 12.4 REQUIRED)
  message(STATUS "CUDA ${CUDAToolkit_VERSION} for architectures ${CMAKE_CUDA_ARCHITECTURES}")

  add_library(jforge_cuda_options INTERFACE)
  # Fused multiply-adds are written explicitly, as on the CPU.
  target_compile_options(jforge_cuda_options INTERFACE
    $<$<COMPILE_LANGUAGE:CUDA>:--fmad=false;-Xcompiler=-Wall,-Wextra,-Wshadow>)
  # PTX for newer devices; uncompressed for tests/cuda_emulator, which executes it.
  set(ptx --generate-code=arch=compute_80,code=compute_80)
  if(JFORGE_TESTS)
    list(APPEND ptx --no-compress)
  endif()
  target_compile_options(jforge_cuda_options INTERFACE "$<$<COMPILE_LANGUAGE:CUDA>:${ptx}>")
  if(JFORGE_WERROR)
    target_compile_options(jforge_cuda_options INTERFACE
      $<$<COMPILE_LANGUAGE:CUDA>:-Werror=all-warnings;-Xcompiler=-Werror>)
  endif()
endif()
