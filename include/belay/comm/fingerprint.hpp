// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// What all ranks of a group must agree on before a byte moves. Each rank publishes the fingerprint of its call; a
// difference aborts the world before any output is written. The call site is no part of it: the same operation may be
// called from different lines.
// IWYU pragma: private, include "belay/belay.hpp"
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "belay/comm/reduction.hpp"
#include "belay/core/config.hpp"
#include "belay/core/hash.hpp"

namespace belay::inline BELAY_ABI {

/// The operation that a rank calls. The codes stand in shared memory, in messages and in flight files: a new one goes
/// to the end.
enum class operation : std::uint8_t {
  none,
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
  exchange,
  make_symmetric,
};
inline constexpr operation last_operation = operation::make_symmetric;

[[nodiscard]] constexpr const char* name(operation which) noexcept {
  switch (which) {
    case operation::none: return "no operation";
    case operation::barrier: return "barrier";
    case operation::all_reduce: return "all_reduce";
    case operation::reduce_scatter: return "reduce_scatter";
    case operation::reduce_scatter_v: return "reduce_scatter_v";
    case operation::all_gather: return "all_gather";
    case operation::all_gather_v: return "all_gather_v";
    case operation::all_to_all: return "all_to_all";
    case operation::all_to_all_v: return "all_to_all_v";
    case operation::broadcast: return "broadcast";
    case operation::reduce: return "reduce";
    case operation::gather: return "gather";
    case operation::scatter: return "scatter";
    case operation::exchange: return "exchange";
    case operation::make_symmetric: return "make_symmetric";
  }
  return "unknown";
}

/// The type of a call's elements: a `dtype` where there is one, else only a size in bytes.
struct element_code {
  static constexpr std::uint8_t opaque = 255;
  std::uint8_t kind = opaque;
  std::uint32_t bytes = 0;

  [[nodiscard]] bool operator==(const element_code&) const = default;
  [[nodiscard]] std::string text() const {
    return kind == opaque ? std::to_string(bytes) + "-byte elements" : belay::name(static_cast<dtype>(kind));
  }
};

template <class T>
[[nodiscard]] constexpr element_code element_code_of() noexcept {
  if constexpr (element<T>)
    return {static_cast<std::uint8_t>(dtype_of<T>), sizeof(T)};
  else
    return {element_code::opaque, sizeof(T)};
}

/// The hash of a count vector, as it stands in a fingerprint.
[[nodiscard]] constexpr std::uint64_t shape_of(std::span<const std::size_t> counts) noexcept {
  fnv1a hash;
  for (const std::size_t count : counts) hash.add(count);
  return hash.value();
}

/// One call, as far as all ranks must agree. `count` is in elements as the caller gave it, `root` a rank of the group
/// or -1, `shape` the hash of a count vector or 0.
struct fingerprint {
  operation what = operation::none;
  reduction how = reduction::none;
  element_code type;
  std::int32_t root = -1;
  std::uint64_t count = 0;
  std::uint64_t shape = 0;

  /// The first operation that was started on a group, as ranks that call instead are told of it. No call is like it.
  [[nodiscard]] static constexpr fingerprint first_start(operation started) noexcept {
    return {started, reduction::none, {}, is_first_start, 0, 0};
  }
  [[nodiscard]] constexpr bool first_start() const noexcept { return root == is_first_start; }

  [[nodiscard]] bool operator==(const fingerprint&) const = default;

  [[nodiscard]] std::size_t bytes() const noexcept { return static_cast<std::size_t>(count) * type.bytes; }

  /// "all_reduce of 12 x F32 (sum)"; where only the hash of a count vector is known, "with counts #" and its end.
  [[nodiscard]] std::string text() const;
  /// "all_gather_v of 6 x F32 with counts 1, 2, 3", with the counts of the first eight ranks; without a count vector as
  /// `text()`.
  [[nodiscard]] std::string text_with(std::span<const std::size_t> counts) const;

 private:
  static constexpr std::int32_t is_first_start = -2;
  [[nodiscard]] std::string call_text() const;
};

}  // namespace belay::inline BELAY_ABI

#if !defined(BELAY_SEPARATE_COMPILATION)
#include "belay/comm/fingerprint.ipp"  // IWYU pragma: export
#endif
