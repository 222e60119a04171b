# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# NCCL and cuDNN are found where Python's packages have them, with a libnccl.so.2 and no libnccl.so, and in NCCL_ROOT and
# cuDNN_ROOT before that.
cmake_minimum_required(VERSION 3.25)

find_program(python NAMES python3 python)
if(NOT python)
  message(STATUS "skipped: there is no Python")
  return()
endif()
find_program(ninja ninja REQUIRED)
file(REMOVE_RECURSE ${work_dir})
foreach(place IN ITEMS packages/nvidia/nccl root)
  file(WRITE ${work_dir}/${place}/lib/libnccl.so.2 "")
endforeach()
foreach(place IN ITEMS packages/nvidia/cudnn root)
  file(WRITE ${work_dir}/${place}/lib/libcudnn.so.9 "")
  file(WRITE ${work_dir}/${place}/include/cudnn_backend.h "")
endforeach()
file(WRITE ${work_dir}/packages/nvidia/cudnn/include/cudnn_version.h "#define CUDNN_MAJOR 9\n#define CUDNN_MINOR 19\n#define CUDNN_PATCHLEVEL 0\n")
file(WRITE ${work_dir}/root/include/cudnn_version.h "#define CUDNN_MAJOR 9\n#define CUDNN_MINOR 10\n#define CUDNN_PATCHLEVEL 2\n")
file(WRITE ${work_dir}/packages/nvidia/nccl/include/nccl.h "#define NCCL_MAJOR 2\n#define NCCL_MINOR 30\n#define NCCL_PATCH 7\n")
file(WRITE ${work_dir}/root/include/nccl.h "#define NCCL_MAJOR 2\n#define NCCL_MINOR 29\n#define NCCL_PATCH 1\n")
file(WRITE ${work_dir}/CMakeLists.txt "cmake_minimum_required(VERSION 3.25)
project(finds LANGUAGES NONE)
set(CMAKE_MODULE_PATH ${source_dir}/cmake)
find_package(NCCL 2.28.9 MODULE)
message(STATUS \"found \${NCCL_VERSION} \${NCCL_LIBRARY}\")
find_package(cuDNN 9 MODULE)
message(STATUS \"found \${cuDNN_VERSION} \${cuDNN_LIBRARY}\")
")

# What the machine itself has is not looked at.
function(expect found)
  file(REMOVE_RECURSE ${work_dir}/build)
  execute_process(COMMAND ${CMAKE_COMMAND} -E env PYTHONPATH=${work_dir}/packages
    ${CMAKE_COMMAND} -G Ninja -DCMAKE_MAKE_PROGRAM=${ninja} -S ${work_dir} -B ${work_dir}/build
    -DCMAKE_DISABLE_FIND_PACKAGE_CUDAToolkit=ON -DCMAKE_FIND_USE_CMAKE_SYSTEM_PATH=OFF
    -DCMAKE_FIND_USE_SYSTEM_ENVIRONMENT_PATH=OFF -DNCCL_PYTHON=${python} -DcuDNN_PYTHON=${python} ${ARGN}
    OUTPUT_VARIABLE said ERROR_VARIABLE complained)
  if(NOT said MATCHES "found ${found}\n")
    message(SEND_ERROR "expected ${found}, with ${ARGN}:\n${said}${complained}")
  endif()
endfunction()
expect("2.30.7 ${work_dir}/packages/nvidia/nccl/lib/libnccl.so.2")
expect("2.29.1 ${work_dir}/root/lib/libnccl.so.2" -DNCCL_ROOT=${work_dir}/root)
expect("9.19.0 ${work_dir}/packages/nvidia/cudnn/lib/libcudnn.so.9")
expect("9.10.2 ${work_dir}/root/lib/libcudnn.so.9" -DcuDNN_ROOT=${work_dir}/root)
