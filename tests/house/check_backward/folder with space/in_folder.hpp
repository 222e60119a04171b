// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

inline constexpr bool in_folder = true;
