# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# cuDNN: the header of its backend interface and its library, beside the CUDA toolkit, in cuDNN_ROOT or where the system
# keeps such things, else in the package of Python's that PyTorch brings, which has a libcudnn.so.9 and no libcudnn.so.
# Makes cuDNN::cudnn, and sets cuDNN_FOUND and cuDNN_VERSION. The front end of cuDNN is not needed.
find_package(CUDAToolkit QUIET)
find_path(cuDNN_INCLUDE_DIR NAMES cudnn_backend.h HINTS ${CUDAToolkit_INCLUDE_DIRS})
find_library(cuDNN_LIBRARY NAMES cudnn libcudnn.so.9 HINTS ${CUDAToolkit_LIBRARY_DIR} ${CUDAToolkit_LIBRARY_ROOT}
  PATH_SUFFIXES lib lib64)
if(NOT cuDNN_INCLUDE_DIR OR NOT cuDNN_LIBRARY)
  find_program(cuDNN_PYTHON NAMES python3 python)
  mark_as_advanced(cuDNN_PYTHON)
  set(cudnn_of_python "")
  if(cuDNN_PYTHON)
    execute_process(COMMAND ${cuDNN_PYTHON} -c "import nvidia.cudnn; print(list(nvidia.cudnn.__path__)[0])"
      OUTPUT_VARIABLE cudnn_of_python ERROR_QUIET OUTPUT_STRIP_TRAILING_WHITESPACE)
  endif()
  if(cudnn_of_python)  # header and library of one version
    unset(cuDNN_INCLUDE_DIR CACHE)
    unset(cuDNN_LIBRARY CACHE)
    find_path(cuDNN_INCLUDE_DIR NAMES cudnn_backend.h PATHS ${cudnn_of_python}/include NO_DEFAULT_PATH)
    find_library(cuDNN_LIBRARY NAMES cudnn libcudnn.so.9 PATHS ${cudnn_of_python}/lib NO_DEFAULT_PATH)
  endif()
endif()
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
