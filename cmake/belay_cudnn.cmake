# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# belay::cudnn, where CMake finds a CUDA toolkit and cuDNN 9: what a program links beside belay::cuda or belay::nccl that
# includes belay/backend/cuda/cudnn_attention.cuh. Serves both this project and those who find it installed.
if(NOT TARGET belay::cudnn)
  include(${CMAKE_CURRENT_LIST_DIR}/belay_cuda.cmake)
  if(TARGET belay::cuda)
    list(PREPEND CMAKE_MODULE_PATH ${CMAKE_CURRENT_LIST_DIR})
    find_package(cuDNN 9 MODULE QUIET)
    list(POP_FRONT CMAKE_MODULE_PATH)
    if(TARGET cuDNN::cudnn)
      add_library(belay_cudnn INTERFACE)
      add_library(belay::cudnn ALIAS belay_cudnn)
      target_link_libraries(belay_cudnn INTERFACE belay_cuda_calls cuDNN::cudnn)
    endif()
  endif()
endif()
