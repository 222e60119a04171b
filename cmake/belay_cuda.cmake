# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# belay::cuda, where CMake finds a CUDA toolkit: what a program links that includes belay/cuda.cuh. It has a core, which
# nvcc compiles once in this build, for the architectures of all that link it: sorting by CUB, and what belay/cuda.cuh
# then declares only. Where the project has no CUDA yet when it asks for Belay, it is the sorting alone, and each source
# compiles the rest. belay::cuda_calls has no core, for a program that runs no kernels of Belay. Serves both this project
# and those who find it installed. The generic headers need no toolkit, and no more than belay::belay. `belay_cuda_lacks`
# says why there is no belay::cuda.

# Targets below the folder that link belay::cuda or belay::nccl must be able to compile their sources; the core is for
# the architectures of all of them. Called when all is said about targets; what gets them by way of a library of its own is
# told by the headers.
function(belay_check_cuda_targets folder)
  get_property(inner DIRECTORY ${folder} PROPERTY SUBDIRECTORIES)
  foreach(one IN LISTS inner)
    belay_check_cuda_targets(${one})
  endforeach()
  get_property(languages GLOBAL PROPERTY ENABLED_LANGUAGES)
  get_property(targets DIRECTORY ${folder} PROPERTY BUILDSYSTEM_TARGETS)
  foreach(target IN LISTS targets)
    get_target_property(linked ${target} LINK_LIBRARIES)
    if(NOT linked MATCHES "belay(::|_)(cuda|nccl)(;|>|$)")
      continue()
    endif()
    set(library belay::${CMAKE_MATCH_2})
    if(NOT "CUDA" IN_LIST languages)
      message(FATAL_ERROR "${target} links ${library}, which adds a source for nvcc, and the project has no CUDA: say "
        "project(NAME LANGUAGES CXX CUDA). A program that runs no kernels of Belay links ${library}_calls instead.")
    endif()
    get_target_property(architectures ${target} CUDA_ARCHITECTURES)
    if(TARGET belay_cuda_core AND architectures)
      set_property(TARGET belay_cuda_core APPEND PROPERTY belay_linked_for ${architectures})
    endif()
    foreach(architecture IN LISTS architectures)
      if(architecture MATCHES "^([0-9]+)" AND CMAKE_MATCH_1 LESS 80)
        message(FATAL_ERROR "${target} links ${library}, whose kernels need sm_80 or newer, and is for sm_${CMAKE_MATCH_1} "
          "(CUDA_ARCHITECTURES): configure with -DCMAKE_CUDA_ARCHITECTURES=90, the number of your GPU, or native where it is.")
      endif()
    endforeach()
  endforeach()
endfunction()

function(belay_finish_cuda_targets)
  belay_check_cuda_targets(${CMAKE_SOURCE_DIR})
  foreach(core IN ITEMS belay_cuda_core belay_nccl_core)
    if(NOT TARGET ${core})
      continue()
    endif()
    get_property(architectures TARGET belay_cuda_core PROPERTY belay_linked_for)
    if(architectures)
      list(REMOVE_DUPLICATES architectures)
      set_target_properties(${core} PROPERTIES CUDA_ARCHITECTURES "${architectures}")
    endif()
  endforeach()
endfunction()

if(NOT TARGET belay::cuda)
  find_package(CUDAToolkit QUIET)
  set(belay_cuda_lacks "a CUDA toolkit with cuBLAS and cuBLASLt, 13 or newer (CMAKE_CUDA_COMPILER or CUDAToolkit_ROOT says where)")
  if(TARGET CUDA::cudart AND CUDAToolkit_VERSION VERSION_LESS 13)
    string(APPEND belay_cuda_lacks "; that in ${CUDAToolkit_BIN_DIR} is ${CUDAToolkit_VERSION}")
  elseif(TARGET CUDA::cudart AND TARGET CUDA::cublas AND TARGET CUDA::cublasLt)
    add_library(belay_cuda_calls INTERFACE)
    add_library(belay::cuda_calls ALIAS belay_cuda_calls)
    target_link_libraries(belay_cuda_calls INTERFACE belay::belay CUDA::cudart CUDA::cublas CUDA::cublasLt)
    add_library(belay_cuda INTERFACE)
    add_library(belay::cuda ALIAS belay_cuda)
    target_link_libraries(belay_cuda INTERFACE belay_cuda_calls)
    get_property(belay_languages GLOBAL PROPERTY ENABLED_LANGUAGES)
    if("CUDA" IN_LIST belay_languages)
      belay_compiled_parts(belay_cuda_core belay/cuda_source.cuh 3 cu)
      target_link_libraries(belay_cuda_core PUBLIC belay_cuda_calls)
      target_compile_definitions(belay_cuda_core PUBLIC BELAY_CUDA_SEPARATE_COMPILATION)
      target_link_libraries(belay_cuda INTERFACE belay_cuda_core)
    else()
      set(belay_include "${CMAKE_CURRENT_LIST_DIR}/../include")
      if(NOT EXISTS "${belay_include}/belay/backend/cuda/sorting.cu")  # installed
        get_target_property(belay_include belay::header_only INTERFACE_INCLUDE_DIRECTORIES)
        list(GET belay_include 0 belay_include)
      endif()
      target_sources(belay_cuda INTERFACE "${belay_include}/belay/backend/cuda/sorting.cu")
      unset(belay_include)
    endif()
    cmake_language(DEFER DIRECTORY ${CMAKE_SOURCE_DIR} CALL belay_finish_cuda_targets)
  endif()
endif()
