# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# NCCL, where it has no package file of its own (before 2.30): its header and library, beside the CUDA toolkit, in
# NCCL_ROOT or where the system keeps such things, else in the package of Python's that PyTorch brings, which has a
# libnccl.so.2 and no libnccl.so. Makes NCCL::nccl, and sets NCCL_FOUND and NCCL_VERSION.
find_package(CUDAToolkit QUIET)
find_path(NCCL_INCLUDE_DIR NAMES nccl.h HINTS ${CUDAToolkit_INCLUDE_DIRS})
find_library(NCCL_LIBRARY NAMES nccl libnccl.so.2 HINTS ${CUDAToolkit_LIBRARY_DIR} ${CUDAToolkit_LIBRARY_ROOT}
  PATH_SUFFIXES lib lib64)
include(${CMAKE_CURRENT_LIST_DIR}/belay_find_in_python.cmake)
belay_find_in_python(NCCL nccl nccl.h nccl libnccl.so.2)
mark_as_advanced(NCCL_INCLUDE_DIR NCCL_LIBRARY)

set(NCCL_VERSION "")
if(NCCL_INCLUDE_DIR)
  file(STRINGS ${NCCL_INCLUDE_DIR}/nccl.h nccl_version_lines REGEX "^#define NCCL_(MAJOR|MINOR|PATCH) [0-9]+$")
  string(REGEX REPLACE "[^0-9;]" "" NCCL_VERSION "${nccl_version_lines}")
  list(JOIN NCCL_VERSION "." NCCL_VERSION)
endif()

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(NCCL REQUIRED_VARS NCCL_LIBRARY NCCL_INCLUDE_DIR VERSION_VAR NCCL_VERSION)
if(NCCL_FOUND AND NOT TARGET NCCL::nccl)
  add_library(NCCL::nccl UNKNOWN IMPORTED)
  set_target_properties(NCCL::nccl PROPERTIES IMPORTED_LOCATION "${NCCL_LIBRARY}"
    INTERFACE_INCLUDE_DIRECTORIES "${NCCL_INCLUDE_DIR}")
endif()
