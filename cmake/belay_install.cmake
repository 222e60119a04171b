# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# Install rules. Nothing of the library depends on the machine: one installed tree serves all architectures. The
# programs beside it are a component of their own, `tools`, and are installed where they were built; one is a script.
include(CMakePackageConfigHelpers)

set(belay_package_dir ${CMAKE_INSTALL_DATADIR}/cmake/belay)

install(TARGETS belay_header_only EXPORT belayTargets FILE_SET HEADERS COMPONENT devel FILE_SET separate COMPONENT devel)
install(EXPORT belayTargets NAMESPACE belay:: DESTINATION ${belay_package_dir} COMPONENT devel)

configure_package_config_file(cmake/belayConfig.cmake.in belayConfig.cmake INSTALL_DESTINATION ${belay_package_dir})
write_basic_package_version_file(belayConfigVersion.cmake COMPATIBILITY SameMinorVersion ARCH_INDEPENDENT)
install(FILES
    ${CMAKE_CURRENT_BINARY_DIR}/belayConfig.cmake
    ${CMAKE_CURRENT_BINARY_DIR}/belayConfigVersion.cmake
    cmake/belay_check_backward.cmake
    cmake/belay_check_backward_run.cmake
    cmake/belay_core.cmake
  DESTINATION ${belay_package_dir} COMPONENT devel)

# The MPI backend needs no MPI to be installed: its users have it.
if(BELAY_INSTALL_MPI)
  install(FILES include/belay/backend/mpi.hpp DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/belay/backend COMPONENT mpi)
  install(DIRECTORY include/belay/backend/mpi DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/belay/backend COMPONENT mpi)
  install(FILES cmake/belay_mpi.cmake DESTINATION ${belay_package_dir} COMPONENT mpi)
endif()

# What of the CUDA and NCCL backends only nvcc takes: whoever includes them has a toolkit.
install(DIRECTORY include/belay/backend/cuda include/belay/backend/nccl DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/belay/backend COMPONENT devel
  FILES_MATCHING PATTERN "*.cuh" PATTERN "*.cu")
install(FILES include/belay/cuda.cuh include/belay/cuda_source.cuh include/belay/nccl.cuh include/belay/nccl_source.cuh DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/belay COMPONENT devel)
install(FILES cmake/belay_cuda.cmake cmake/belay_nccl.cmake cmake/FindNCCL.cmake cmake/belay_cudnn.cmake cmake/FindcuDNN.cmake cmake/belay_find_in_python.cmake
  DESTINATION ${belay_package_dir} COMPONENT devel)

# Nothing is linked, so the file has no Libs and may lie in share.
configure_file(cmake/belay.pc.in belay.pc @ONLY)
configure_file(cmake/belay-core.pc.in belay-core.pc @ONLY)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/belay.pc ${CMAKE_CURRENT_BINARY_DIR}/belay-core.pc DESTINATION ${CMAKE_INSTALL_DATADIR}/pkgconfig COMPONENT devel)
install(FILES LICENSE DESTINATION ${CMAKE_INSTALL_DATADIR}/licenses/belay COMPONENT devel)

foreach(tool belay-run belay-info belay-fr belay-checkpoint belay-plan)
  if(TARGET ${tool})
    install(TARGETS ${tool} RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT tools OPTIONAL)
  endif()
endforeach()
if(BELAY_BUILD_EXAMPLES)
  install(PROGRAMS examples/tools/belay_check_backward DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT tools)
endif()
