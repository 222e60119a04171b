# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# belay::nccl, where CMake finds a CUDA toolkit and NCCL: what a program links that includes belay/nccl.cuh. It brings
# belay::cuda and a core of its own, as that has one; belay::nccl_calls has none. Serves both this project and those who find it installed.
# NCCL's own package file is taken where it has one, else the module beside this file. The generic headers need no more
# than belay::belay.
if(NOT TARGET belay::nccl)
  include(${CMAKE_CURRENT_LIST_DIR}/belay_cuda.cmake)
  if(TARGET belay::cuda)
    find_package(NCCL 2.28.9 CONFIG QUIET)
    if(NOT TARGET NCCL::nccl)
      list(PREPEND CMAKE_MODULE_PATH ${CMAKE_CURRENT_LIST_DIR})
      find_package(NCCL 2.28.9 MODULE QUIET)
      list(POP_FRONT CMAKE_MODULE_PATH)
    endif()
    if(TARGET NCCL::nccl)
      add_library(belay_nccl_calls INTERFACE)
      add_library(belay::nccl_calls ALIAS belay_nccl_calls)
      target_link_libraries(belay_nccl_calls INTERFACE belay_cuda_calls NCCL::nccl)
      add_library(belay_nccl INTERFACE)
      add_library(belay::nccl ALIAS belay_nccl)
      target_link_libraries(belay_nccl INTERFACE belay_nccl_calls belay_cuda)
      if(TARGET belay_cuda_core)
        belay_compiled_parts(belay_nccl_core belay/nccl_source.cuh 1 cu)
        target_link_libraries(belay_nccl_core PUBLIC belay_nccl_calls belay_cuda_core)
        target_compile_definitions(belay_nccl_core PUBLIC BELAY_NCCL_SEPARATE_COMPILATION)
        target_link_libraries(belay_nccl INTERFACE belay_nccl_core)
      endif()
    endif()
  endif()
endif()
