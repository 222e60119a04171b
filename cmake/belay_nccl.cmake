# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# belay::nccl, where CMake finds a CUDA toolkit and NCCL: what a program links that includes
# belay/backend/nccl/runtime_nccl.cuh. Serves both this project and those who find it installed. NCCL's own package file
# is taken where it has one, else the module beside this file. A program that sorts on a device links belay::cuda too. The
# generic headers need no more than belay::belay.
if(NOT TARGET belay::nccl)
  include(${CMAKE_CURRENT_LIST_DIR}/belay_cuda.cmake)
  if(TARGET belay::cuda_calls)
    find_package(NCCL 2.28.9 CONFIG QUIET)
    if(NOT TARGET NCCL::nccl)
      list(PREPEND CMAKE_MODULE_PATH ${CMAKE_CURRENT_LIST_DIR})
      find_package(NCCL 2.28.9 MODULE QUIET)
      list(POP_FRONT CMAKE_MODULE_PATH)
    endif()
    if(TARGET NCCL::nccl)
      add_library(belay_nccl INTERFACE)
      add_library(belay::nccl ALIAS belay_nccl)
      target_link_libraries(belay_nccl INTERFACE belay::cuda_calls NCCL::nccl)
    endif()
  endif()
endif()
