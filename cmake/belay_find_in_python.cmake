# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# belay_find_in_python(PREFIX MODULE HEADER LIBRARY...): where PREFIX_INCLUDE_DIR or PREFIX_LIBRARY was not found, both are
# looked for in the package nvidia.MODULE of Python's, which has libraries with their version in the name alone.
function(belay_find_in_python prefix module header)
  if(${prefix}_INCLUDE_DIR AND ${prefix}_LIBRARY)
    return()
  endif()
  find_program(${prefix}_PYTHON NAMES python3 python)
  mark_as_advanced(${prefix}_PYTHON)
  set(folder "")
  if(${prefix}_PYTHON)
    execute_process(COMMAND ${${prefix}_PYTHON} -c "import nvidia.${module}; print(list(nvidia.${module}.__path__)[0])"
      OUTPUT_VARIABLE folder ERROR_QUIET OUTPUT_STRIP_TRAILING_WHITESPACE)
  endif()
  if(folder)  # header and library of one version
    unset(${prefix}_INCLUDE_DIR CACHE)
    unset(${prefix}_LIBRARY CACHE)
    find_path(${prefix}_INCLUDE_DIR NAMES ${header} PATHS ${folder}/include NO_DEFAULT_PATH)
    find_library(${prefix}_LIBRARY NAMES ${ARGN} PATHS ${folder}/lib NO_DEFAULT_PATH)
  endif()
endfunction()
