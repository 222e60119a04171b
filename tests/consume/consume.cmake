# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# cmake -Dmode=<how> ... -P consume.cmake: takes Belay into project/ that way, builds and runs it.
cmake_minimum_required(VERSION 3.25)
set(project_dir ${CMAKE_CURRENT_LIST_DIR}/project)
set(prefix ${work_dir}/prefix)
file(REMOVE_RECURSE ${work_dir})
file(MAKE_DIRECTORY ${work_dir})

function(run)
  execute_process(COMMAND ${ARGN} WORKING_DIRECTORY ${work_dir} RESULT_VARIABLE failed OUTPUT_VARIABLE output ERROR_VARIABLE output)
  if(failed)
    message(FATAL_ERROR "${ARGN}\n${output}")
  endif()
  set(output "${output}" PARENT_SCOPE)
endfunction()

if(mode MATCHES "find_package|pkg_config|nvcc")
  run(${CMAKE_COMMAND} -S ${source_dir} -B ${work_dir}/belay -G ${generator} -DCMAKE_CXX_COMPILER=${cxx}
    -DCMAKE_INSTALL_PREFIX=${prefix} -DBELAY_BUILD_TESTS=OFF -DBELAY_BUILD_EXAMPLES=OFF -DBELAY_BUILD_BENCH=OFF)
  run(${CMAKE_COMMAND} --install ${work_dir}/belay)
  if(NOT EXISTS ${prefix}/share/licenses/belay/LICENSE)
    message(FATAL_ERROR "the licence was not installed")
  endif()
  foreach(header backend/cuda/runtime_api.cuh backend/cuda/cudnn_attention.cuh backend/cuda/sorting.cu backend/nccl/runtime_nccl.cuh cuda.cuh cuda_source.cuh
      nccl.cuh nccl_source.cuh)
    if(NOT EXISTS ${prefix}/include/belay/${header})
      message(FATAL_ERROR "a header for nvcc was not installed: ${header}")
    endif()
  endforeach()
  # A staged tree can be moved.
  file(RENAME ${prefix} ${prefix}_moved)
  set(prefix ${prefix}_moved)
  # A project whose C++ is compiled by nvcc alone has enabled no CXX.
  file(WRITE ${work_dir}/no_cxx/CMakeLists.txt "cmake_minimum_required(VERSION 3.25)\nproject(no_cxx LANGUAGES C)\n"
    "find_package(belay CONFIG REQUIRED)\nadd_library(uses INTERFACE)\ntarget_link_libraries(uses INTERFACE belay::report_page)\n")
  # A library over Belay is installed with its targets, for those who find it and Belay.
  file(WRITE ${work_dir}/exporting/over.cpp "int over() { return 1; }\n")
  file(WRITE ${work_dir}/exporting/CMakeLists.txt "cmake_minimum_required(VERSION 3.25)\nproject(over LANGUAGES CXX)\n"
    "find_package(belay CONFIG REQUIRED)\nadd_library(over STATIC over.cpp)\ntarget_link_libraries(over PUBLIC belay::belay)\n"
    "install(TARGETS over EXPORT over)\ninstall(EXPORT over DESTINATION share/over)\n")
  run(${CMAKE_COMMAND} -S ${work_dir}/exporting -B ${work_dir}/exporting/build -G ${generator} -DCMAKE_CXX_COMPILER=${cxx}
    -DCMAKE_PREFIX_PATH=${prefix})
  run(${CMAKE_COMMAND} -S ${work_dir}/no_cxx -B ${work_dir}/no_cxx/build -G ${generator} -DCMAKE_PREFIX_PATH=${prefix})
endif()

if(mode STREQUAL "pkg_config")
  set(ENV{PKG_CONFIG_PATH} ${prefix}/share/pkgconfig)
  run(${pkg_config} --modversion belay)
  string(STRIP "${output}" found)
  if(NOT found STREQUAL version)
    message(FATAL_ERROR "pkg-config says version '${found}', not '${version}'")
  endif()
  run(${pkg_config} --cflags belay)
  separate_arguments(compile_flags UNIX_COMMAND "${output}")
  run(${pkg_config} --libs belay)
  separate_arguments(link_flags UNIX_COMMAND "${output}")
  # As make does it: compiled here, linked there.
  run(${cxx} -std=c++20 ${compile_flags} -c ${project_dir}/main.cpp -o ${work_dir}/main.o)
  run(${cxx} ${work_dir}/main.o ${link_flags} -o ${work_dir}/main)
  run(${work_dir}/main)
  # With the core in a source of its own.
  run(${pkg_config} --cflags belay-core)
  separate_arguments(compile_flags UNIX_COMMAND "${output}")
  run(${pkg_config} --variable=source belay-core)
  string(STRIP "${output}" source)
  file(WRITE ${work_dir}/core_in_one.cpp "#include \"${source}\"\n")
  file(COPY_FILE ${project_dir}/ranks.cpp ${work_dir}/ranks.cpp)
  set(ENV{BELAY_TEST_CORES} ${work_dir}/../cores)
  foreach(name core_in_one ranks)
    run(${CMAKE_CURRENT_LIST_DIR}/core_once.sh ${cxx} -std=c++20 -fPIC -Wall -Wextra -Wpedantic -Wconversion -Wshadow -Werror
      ${compile_flags} -c ${work_dir}/${name}.cpp -o ${work_dir}/${name}.o)
  endforeach()
  run(${cxx} ${work_dir}/ranks.o ${work_dir}/core_in_one.o ${link_flags} -o ${work_dir}/ranks)
  run(${work_dir}/ranks)
elseif(mode STREQUAL "conan")
  # From a copy, because Conan builds the test package where it lies.
  foreach(part include cmake packaging CMakeLists.txt LICENSE conanfile.py)
    file(COPY ${source_dir}/${part} DESTINATION ${work_dir}/source)
  endforeach()
  set(ENV{CONAN_HOME} ${work_dir}/conan)
  run(${conan} profile detect)
  set(create ${conan} create ${work_dir}/source -s compiler.cppstd=20 --no-remote -tf packaging/conan/test_package)
  run(${create})
  if(with_mpi)
    run(${create} -o "belay/*:with_mpi=True")
  endif()
elseif(mode STREQUAL "nvcc")
  set(devices ${CMAKE_CURRENT_LIST_DIR}/devices)
  set(ENV{BELAY_TEST_CORES} ${work_dir}/../cores)
  set(configure ${CMAKE_COMMAND} -S ${devices} -G ${generator} -DCMAKE_CXX_COMPILER=${cxx} -DCMAKE_CUDA_COMPILER=${nvcc}
    -DCMAKE_CXX_COMPILER_LAUNCHER=${CMAKE_CURRENT_LIST_DIR}/core_once.sh -DCMAKE_CXX_EXTENSIONS=OFF
    -Dbelay_version=${version} -DCMAKE_PREFIX_PATH=${prefix})
  run(${configure} -B ${work_dir}/build -Dcomponents=${components} -DCMAKE_CUDA_ARCHITECTURES=80
    "-DCMAKE_CUDA_FLAGS=-O0 --Ofast-compile=max" -Dlanguages=CXX -Dafter=CUDA)
  run(${CMAKE_COMMAND} --build ${work_dir}/build)
  # With CUDA before Belay there are cores, which the house's own programs for nvcc are linked with: here their lines alone.
  run(${configure} -B ${work_dir}/cores -Dcomponents=${components} -DCMAKE_CUDA_ARCHITECTURES=90)
  run(${CMAKE_COMMAND} --build ${work_dir}/cores -- -n)
  foreach(source IN ITEMS cuda_core_3 nccl_core_1)
    if(NOT output MATCHES "${source}" AND components MATCHES "nccl")
      message(FATAL_ERROR "belay::nccl of an installed Belay has no core ${source}:\n${output}")
    endif()
  endforeach()
  # What cannot work is refused in a sentence.
  function(expect_refusal sentence)
    execute_process(COMMAND ${ARGN} RESULT_VARIABLE code OUTPUT_VARIABLE said ERROR_VARIABLE said)
    string(REGEX REPLACE "[ \n]+" " " said "${said}")
    if(code EQUAL 0 OR NOT said MATCHES "${sentence}")
      message(FATAL_ERROR "${ARGN}: exit code ${code}, '${sentence}' expected\n${said}")
    endif()
  endfunction()
  string(REPLACE "," ";" each_component "${components}")
  foreach(component IN LISTS each_component)
    # Without a driver: one line, that of the error.
    execute_process(COMMAND ${work_dir}/build/consumer_${component} RESULT_VARIABLE code OUTPUT_VARIABLE said ERROR_VARIABLE errors)
    string(REGEX REPLACE "^NCCL [0-9.]+\n" "" said "${said}")
    if(NOT (code EQUAL 0 AND said STREQUAL "sorted\n")
        AND NOT (code EQUAL 4 AND said MATCHES "^[^\n]*open: cudaGetDeviceCount[^\n]*is a driver installed[^\n]*\n$" AND errors STREQUAL ""))
      message(FATAL_ERROR "${component}: exit code ${code}\n${said}${errors}")
    endif()
    set(one ${configure} -Dcomponents=${component})
    expect_refusal("links belay::${component}, whose kernels need sm_80 or newer, and is for sm_75"
      ${one} -B ${work_dir}/${component}_old -DCMAKE_CUDA_ARCHITECTURES=75)
    expect_refusal("links belay::${component},.* say project.NAME LANGUAGES CXX CUDA" ${one} -B ${work_dir}/${component}_cxx -Dlanguages=CXX)
    expect_refusal("say project.NAME LANGUAGES CXX CUDA" ${one} -B ${work_dir}/${component}_none -Dlanguages=NONE)
  endforeach()
  expect_refusal("needs sm_80 or newer: set CMAKE_CUDA_ARCHITECTURES"
    ${nvcc} -std=c++20 -arch=sm_75 -I${prefix}/include -ptx -o ${work_dir}/old.ptx ${devices}/cuda.cu)
else()
  set(ENV{BELAY_TEST_CORES} ${work_dir}/../cores)
  run(${CMAKE_COMMAND} -S ${project_dir} -B ${work_dir}/build -G ${generator} -DCMAKE_CXX_COMPILER=${cxx} -Dmode=${mode}
    -DCMAKE_CXX_COMPILER_LAUNCHER=${CMAKE_CURRENT_LIST_DIR}/core_once.sh -DCMAKE_CXX_EXTENSIONS=OFF
    -Dbelay_source_dir=${source_dir} -Dbelay_version=${version} -DCMAKE_PREFIX_PATH=${prefix})
  run(${CMAKE_COMMAND} --build ${work_dir}/build)
  run(${work_dir}/build/consumer)
  if(mode MATCHES "add_subdirectory|find_package")
    run(${work_dir}/build/consumer_page)
    if(NOT EXISTS ${work_dir}/page/index.html)
      message(FATAL_ERROR "belay::report_page makes no page")
    endif()
    run(${work_dir}/build/consumer_ranks)
  endif()
  if(mode STREQUAL "find_package")
    foreach(program of_level_2 of_two_libraries)
      run(${work_dir}/build/consumer_${program})
    endforeach()
    execute_process(COMMAND ${CMAKE_COMMAND} --build ${work_dir}/build --target consumer_of_another_level
      RESULT_VARIABLE failed OUTPUT_VARIABLE said ERROR_VARIABLE said)
    if(NOT failed OR NOT said MATCHES "no_core_of_the_same_BELAY_CHECKS_is_linked")
      message(FATAL_ERROR "a program of another level than its core's links, or the linker does not say why not:\n${said}")
    endif()
  endif()
endif()

# While the version is 0.x, another minor version is another library.
if(mode STREQUAL "find_package")
  execute_process(COMMAND ${CMAKE_COMMAND} -S ${project_dir} -B ${work_dir}/older -G ${generator} -DCMAKE_CXX_COMPILER=${cxx}
      -Dmode=${mode} -Dbelay_version=0.99 -DCMAKE_PREFIX_PATH=${prefix}
    RESULT_VARIABLE failed OUTPUT_QUIET ERROR_QUIET)
  if(NOT failed)
    message(FATAL_ERROR "a request for version 0.99 was satisfied by ${version}")
  endif()
  # A request that cannot be met is refused in a sentence.
  function(expect_refusal sentence lines)
    file(WRITE ${work_dir}/refused/CMakeLists.txt "cmake_minimum_required(VERSION 3.25)\nproject(refused LANGUAGES C)\n${lines}\n")
    execute_process(COMMAND ${CMAKE_COMMAND} -S ${work_dir}/refused -B ${work_dir}/refused/build -G ${generator} -DCMAKE_PREFIX_PATH=${prefix}
      RESULT_VARIABLE code OUTPUT_VARIABLE said ERROR_VARIABLE said)
    string(REGEX REPLACE "[ \n]+" " " said "${said}")
    if(code EQUAL 0 OR NOT said MATCHES "${sentence}")
      message(FATAL_ERROR "${lines}: exit code ${code}, '${sentence}' expected\n${said}")
    endif()
  endfunction()
  expect_refusal("there is no component nonsense: core, host, mpi" "find_package(belay CONFIG REQUIRED COMPONENTS core nonsense)")
  expect_refusal("there is a target of that name" "find_package(belay CONFIG REQUIRED)\nbelay_core(belay_core CHECKS 2)")
  expect_refusal("a core is compiled as CXX" "find_package(belay CONFIG REQUIRED)\nbelay_core(of_mine CHECKS 2)")
  expect_refusal("has a Belay already" "find_package(belay CONFIG REQUIRED)\nadd_subdirectory(${source_dir} belay)")
endif()
