// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// All of a file from outside. Pipes and devices are not read: they may block or never end.
#pragma once

#include <fcntl.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "belay/core/error.hpp"
#include "belay/core/where.hpp"
#include "belay/train/safetensors/file.hpp"

namespace input {

/// The bytes of the regular file `path`. Anything else, and a file of more than `most` bytes, is a belay::file_error.
[[nodiscard]] inline std::string content_of(const std::string& path, std::uint64_t most) {
  const belay::where here;
  const belay::safetensors::file in(path, O_RDONLY | O_NONBLOCK, here);
  const std::uint64_t size = in.size(here);
  if (size > most) {
    throw belay::file_error(path, 0,
                            "has " + std::to_string(size) + " bytes, at most " + std::to_string(most) + " are read");
  }
  std::string text(static_cast<std::size_t>(size), '\0');
  in.read(0, std::as_writable_bytes(std::span(text)), here);
  return text;
}

}  // namespace input
