// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The library calls of all element types, each group of types compiled in a source of its own: together they are most
// of what the compiler has to do. Tests build float alone.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <stdexcept>

#include "belay/backend/host/group.hpp"
#include "collectives/library_call.hpp"
#include "collectives/options.hpp"

namespace bench {

#if defined(BELAY_BENCH_ALL_TYPES)
inline constexpr bool all_types = true;
#else
inline constexpr bool all_types = false;
#endif

template <class T>
using subject_maker = std::unique_ptr<library_call>(const belay::host::group&, op, const options&, std::byte*,
                                                    std::byte*);

extern template subject_maker<float> make_subject_of<float>;
extern template subject_maker<double> make_subject_of<double>;
extern template subject_maker<belay::bf16> make_subject_of<belay::bf16>;
extern template subject_maker<belay::fp16> make_subject_of<belay::fp16>;
extern template subject_maker<belay::fp8_e4m3> make_subject_of<belay::fp8_e4m3>;
extern template subject_maker<std::int8_t> make_subject_of<std::int8_t>;
extern template subject_maker<std::int32_t> make_subject_of<std::int32_t>;
extern template subject_maker<std::int64_t> make_subject_of<std::int64_t>;
extern template subject_maker<std::uint8_t> make_subject_of<std::uint8_t>;

template <class Group>
[[nodiscard]] std::unique_ptr<library_call> make_library_call(const Group& group, op which, const options& what,
                                                              std::byte* in, std::byte* out) {
  if (what.type == "float") return make_subject_of<float>(group, which, what, in, out);
  if constexpr (all_types) {
    if (what.type == "double") return make_subject_of<double>(group, which, what, in, out);
    if (what.type == "bf16") return make_subject_of<belay::bf16>(group, which, what, in, out);
    if (what.type == "fp16") return make_subject_of<belay::fp16>(group, which, what, in, out);
    if (what.type == "fp8") return make_subject_of<belay::fp8_e4m3>(group, which, what, in, out);
    if (what.type == "int8") return make_subject_of<std::int8_t>(group, which, what, in, out);
    if (what.type == "int32") return make_subject_of<std::int32_t>(group, which, what, in, out);
    if (what.type == "int64") return make_subject_of<std::int64_t>(group, which, what, in, out);
    if (what.type == "uint8") return make_subject_of<std::uint8_t>(group, which, what, in, out);
  }
  throw std::runtime_error("--type " + what.type +
                           ": built with float alone; bench/run collectives --type builds all types");
}

}  // namespace bench
