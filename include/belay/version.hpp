// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The one place that holds the version: CMake, the package files and the Conan recipe read it here.
// The macros exist so that a consumer's preprocessor can ask; programs read the constants.
#pragma once

#define BELAY_VERSION_MAJOR 0
#define BELAY_VERSION_MINOR 3
#define BELAY_VERSION_PATCH 0

// 10000 * major + 100 * minor + patch, for comparisons in the preprocessor.
#define BELAY_VERSION (BELAY_VERSION_MAJOR * 10000 + BELAY_VERSION_MINOR * 100 + BELAY_VERSION_PATCH)
