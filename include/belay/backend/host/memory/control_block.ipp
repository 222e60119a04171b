// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Sizes and checks of a control block.
#pragma once

#include "belay/backend/host/memory/control_block.hpp"
#include "belay/core/checked_size.hpp"
#include "belay/core/error.hpp"

namespace belay::inline BELAY_ABI {
namespace host {

[[gnu::cold]] BELAY_DECL control_block control_block::make(std::byte* memory, const control_shape& shape) noexcept {
  auto& header = *reinterpret_cast<control_header*>(memory);
  header.version = control_header::right_version;
  header.bytes = bytes_for(shape);
  header.shape = shape;
  header.copies = copy_table();
  header.magic = control_header::right_magic;
  return control_block(memory, shape);
}

[[gnu::cold]] BELAY_DECL control_block control_block::attach(std::byte* memory, std::size_t bytes) {
  const auto& header = *reinterpret_cast<const control_header*>(memory);
  if (bytes < sizeof(control_header) || header.magic != control_header::right_magic ||
      header.version != control_header::right_version || header.bytes > bytes || header.shape.ranks < 1 ||
      header.shape.ranks > most_ranks || bytes_for(header.shape) != header.bytes) {
    throw input_error("a segment of " + std::to_string(bytes) +
                      " bytes is no control segment of this version of Belay");
  }
  return control_block(memory, header.shape);
}

[[gnu::cold]] BELAY_DECL control_block::parts control_block::parts_of(const control_shape& shape) noexcept {
  const auto up = [](checked_size bytes) { return bytes.rounded_up(4096).saturated(); };
  const auto ranks = static_cast<std::size_t>(shape.ranks);
  parts out;
  out.seats = up(sizeof(control_header));
  out.staging = up(out.seats + checked_size(ranks) * sizeof(rank_block));
  out.groups = up(out.staging + checked_size(ranks) * lane_count * shape.staging_bytes);
  out.end = up(checked_size(out.groups) + shape.group_bytes);
  return out;
}

}  // namespace host
}  // namespace belay::inline BELAY_ABI
