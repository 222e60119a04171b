# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# belay::host_compiled: what a program links instead of belay::belay to compile the host backend once. A static library
# of the user's build, made when something links it, with the flags of that build: BELAY_CHECKS must be the same in the
# library and the program. It names the namespace of both, so the linker refuses a mixture. Serves both this project
# and those who find it installed. A project without C++ of its own (only CUDA, say) has no such target.
get_property(belay_languages GLOBAL PROPERTY ENABLED_LANGUAGES)
if(NOT TARGET belay::host_compiled AND "CXX" IN_LIST belay_languages)
  set(belay_host_source "${CMAKE_CURRENT_BINARY_DIR}/belay_host_compiled.cpp")
  file(CONFIGURE OUTPUT "${belay_host_source}" CONTENT "#include \"belay/backend/host/source.hpp\"\n" @ONLY)
  add_library(belay_host_compiled STATIC EXCLUDE_FROM_ALL "${belay_host_source}")
  add_library(belay::host_compiled ALIAS belay_host_compiled)
  target_link_libraries(belay_host_compiled PUBLIC belay::belay)
  target_compile_definitions(belay_host_compiled PUBLIC BELAY_SEPARATE_COMPILATION)
  set_target_properties(belay_host_compiled PROPERTIES POSITION_INDEPENDENT_CODE ON)  # also for shared libraries
endif()
