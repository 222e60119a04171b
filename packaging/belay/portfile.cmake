# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# An overlay port: vcpkg install belay --overlay-ports=<this repository>/packaging, or belay[mpi] with the MPI
# backend. It takes the sources it lies in, which vcpkg does not hash: see docs/howto/use_belay.md.
cmake_path(SET SOURCE_PATH NORMALIZE "${CURRENT_PORT_DIR}/../..")
set(VCPKG_BUILD_TYPE release)  # sources alone: the consumer's build compiles them

vcpkg_check_features(OUT_FEATURE_OPTIONS features FEATURES mpi BELAY_INSTALL_MPI)
vcpkg_cmake_configure(SOURCE_PATH "${SOURCE_PATH}"
  OPTIONS ${features} -DBELAY_BUILD_TESTS=OFF -DBELAY_BUILD_EXAMPLES=OFF -DBELAY_BUILD_BENCH=OFF -DBELAY_MPI=OFF)
vcpkg_cmake_install()
vcpkg_cmake_config_fixup(PACKAGE_NAME belay CONFIG_PATH share/cmake/belay)
vcpkg_fixup_pkgconfig()

file(REMOVE_RECURSE "${CURRENT_PACKAGES_DIR}/debug" "${CURRENT_PACKAGES_DIR}/lib")
file(INSTALL "${CMAKE_CURRENT_LIST_DIR}/usage" DESTINATION "${CURRENT_PACKAGES_DIR}/share/${PORT}")
vcpkg_install_copyright(FILE_LIST "${SOURCE_PATH}/LICENSE")
