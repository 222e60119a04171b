// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The names of checkpoints and of their files.
#pragma once

#include <sys/random.h>

#include "belay/core/printable.hpp"
#include "belay/train/checkpoint/checkpoint_folder.hpp"

namespace belay::inline BELAY_ABI {

BELAY_DECL std::string checkpoint_name(std::uint64_t step) {
  char text[32];
  std::snprintf(text, sizeof text, "step-%08llu", static_cast<unsigned long long>(step));
  return text;
}

BELAY_DECL std::string checkpoint_file_name(std::string_view group, int rank) {
  char text[32];
  std::snprintf(text, sizeof text, "-%05d.safetensors", rank);
  return std::string(group) + text;
}

BELAY_DECL std::string padded_step(std::uint64_t step) {
  char text[32];
  std::snprintf(text, sizeof text, "%012llu", static_cast<unsigned long long>(step));
  return text;
}

BELAY_DECL std::string random_checkpoint_id(where at) {
  std::uint64_t random = 0;
  if (::getrandom(&random, sizeof random, 0) != static_cast<ssize_t>(sizeof random))
    throw file_error("getrandom", 0, "no number can be drawn for a checkpoint", at);
  std::string out;
  append_hex(out, random, 16);
  return out;
}

}  // namespace belay::inline BELAY_ABI
