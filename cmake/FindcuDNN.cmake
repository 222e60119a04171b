# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# cuDNN: the header of its backend interface and its library, beside the CUDA toolkit, in cuDNN_ROOT or where the system
# keeps such things, else in the package of Python's that PyTorch brings, which has a libcudnn.so.9 and no libcudnn.so.
# Makes cuDNN::cudnn, and sets cuDNN_FOUND and cuDNN_VERSION. The front end of cuDNN is not needed.
find_package(CUDAToolkit QUIET)
find_path(cuDNN_INCLUDE_DIR NAMES cudnn_backend.h HINTS ${CUDAToolkit_INCLUDE_DIRS})
find_library(cuDNN_LIBRARY NAMES cudnn libcudnn.so.9 HINTS ${CUDAToolkit_LIBRARY_DIR} ${CUDAToolkit_LIBRARY_ROOT}
  PATH_SUFFIXES lib lib64)
include(${CMAKE_CURRENT_LIST_DIR}/belay_find_in_python.cmake)
belay_find_in_python(cuDNN cudnn cudnn_backend.h cudnn libcudnn.so.9)
mark_as_advanced(cuDNN_INCLUDE_DIR cuDNN_LIBRARY)

set(cuDNN_VERSION "")
if(EXISTS "${cuDNN_INCLUDE_DIR}/cudnn_version.h")
  file(STRINGS ${cuDNN_INCLUDE_DIR}/cudnn_version.h cudnn_version_lines
    REGEX "^#define CUDNN_(MAJOR|MINOR|PATCHLEVEL) [0-9]+$")
  string(REGEX REPLACE "[^0-9;]" "" cuDNN_VERSION "${cudnn_version_lines}")
  list(JOIN cuDNN_VERSION "." cuDNN_VERSION)
endif()

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(cuDNN REQUIRED_VARS cuDNN_LIBRARY cuDNN_INCLUDE_DIR VERSION_VAR cuDNN_VERSION)
if(cuDNN_FOUND AND NOT TARGET cuDNN::cudnn)
  add_library(cuDNN::cudnn UNKNOWN IMPORTED)
  set_target_properties(cuDNN::cudnn PROPERTIES IMPORTED_LOCATION "${cuDNN_LIBRARY}"
    INTERFACE_INCLUDE_DIRECTORIES "${cuDNN_INCLUDE_DIR}")
endif()
