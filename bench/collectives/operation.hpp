// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The operations that are measured, and how nccl-tests counts their bytes and bandwidths.
#pragma once

#include <array>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace bench {

enum class op {
  barrier,
  all_reduce,
  reduce_scatter,
  reduce_scatter_v,
  all_gather,
  all_gather_v,
  all_to_all,
  all_to_all_v,
  broadcast,
  reduce,
  gather,
  scatter,
  send_recv
};

inline constexpr std::array op_names{"barrier",      "all_reduce", "reduce_scatter", "reduce_scatter_v", "all_gather",
                                     "all_gather_v", "all_to_all", "all_to_all_v",   "broadcast",        "reduce",
                                     "gather",       "scatter",    "send_recv"};

[[nodiscard]] constexpr const char* name(op what) noexcept { return op_names[static_cast<std::size_t>(what)]; }

[[nodiscard]] inline std::optional<op> op_named(std::string_view text) noexcept {
  for (std::size_t i = 0; i < op_names.size(); ++i) {
    if (text == op_names[i]) return static_cast<op>(i);
  }
  return std::nullopt;
}

/// The operations of "all", of "all_reduce" or of "all_reduce,barrier"; nothing where a name is unknown.
[[nodiscard]] inline std::optional<std::vector<op>> parse_ops(std::string_view text) {
  std::vector<op> out;
  if (text == "all") {
    for (std::size_t i = 0; i < op_names.size(); ++i) out.push_back(static_cast<op>(i));
    return out;
  }
  while (true) {
    const std::size_t comma = text.find(',');
    const auto one = op_named(text.substr(0, comma));
    if (!one) return std::nullopt;
    out.push_back(*one);
    if (comma == std::string_view::npos) return out;
    text.remove_prefix(comma + 1);
  }
}

[[nodiscard]] constexpr bool reduces(op what) noexcept {
  return what == op::all_reduce || what == op::reduce_scatter || what == op::reduce_scatter_v || what == op::reduce;
}

[[nodiscard]] constexpr bool has_root(op what) noexcept {
  return what == op::broadcast || what == op::reduce || what == op::gather || what == op::scatter;
}

/// Whether the larger buffer holds one part for each rank; elsewhere it is one part.
[[nodiscard]] constexpr bool has_parts(op what) noexcept {
  switch (what) {
    case op::reduce_scatter:
    case op::reduce_scatter_v:
    case op::all_gather:
    case op::all_gather_v:
    case op::all_to_all:
    case op::all_to_all_v:
    case op::gather:
    case op::scatter: return true;
    default: return false;
  }
}

/// The sizes of a row: `count` elements in a part, `parts` of them in the larger buffer, which `bytes` counts.
struct extent {
  std::size_t count = 0;
  std::size_t parts = 1;
  std::size_t bytes = 0;
  [[nodiscard]] std::size_t elements() const noexcept { return count * parts; }
};

/// As much of `bytes` as fits whole parts of elements of `element_bytes`.
[[nodiscard]] constexpr extent extent_of(op what, std::size_t bytes, std::size_t element_bytes, int ranks) noexcept {
  if (what == op::barrier) return {};
  const std::size_t parts = has_parts(what) ? static_cast<std::size_t>(ranks) : 1;
  const std::size_t count = bytes / element_bytes / parts;
  return {count, parts, count * parts * element_bytes};
}

/// Bytes of the larger buffer by time, in GB/s of 1e9.
[[nodiscard]] constexpr double algbw(std::size_t bytes, double us) noexcept {
  return us > 0 ? static_cast<double>(bytes) / us / 1e3 : 0;
}

/// The bytes that each link carries if the operation is done as well as it can be: nccl-tests' factors.
[[nodiscard]] constexpr double busbw_factor(op what, int ranks) noexcept {
  const double n = ranks;
  if (what == op::all_reduce) return 2 * (n - 1) / n;
  return has_parts(what) ? (n - 1) / n : 1;
}

}  // namespace bench
