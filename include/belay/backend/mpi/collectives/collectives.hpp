// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The collectives. MPI moves the bytes, in point-to-point messages; what is reduced is reduced here, by the
// arithmetic of the host backend in rank order, so that all backends agree bit for bit.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "belay/backend/mpi/collectives/argument_checks.hpp"
#include "belay/backend/mpi/collectives/collective_context.hpp"
#include "belay/comm/call_arguments.hpp"
#include "belay/comm/reduce_blocks.hpp"
#include "belay/comm/reduction.hpp"
#include "belay/core/config.hpp"
#include "belay/core/where.hpp"

namespace belay::inline BELAY_ABI {
namespace mpi {

template <class T>
void fill_out(transfer& one, const T* from, std::size_t count) noexcept {
  one.out = reinterpret_cast<const std::byte*>(from);
  one.out_bytes = count * sizeof(T);
}
template <class T>
void fill_in(transfer& one, T* to, std::size_t count) noexcept {
  one.in = reinterpret_cast<std::byte*>(to);
  one.in_bytes = count * sizeof(T);
}

/// A collective that is reduced works on so many bytes at a time, so that what is staged stays small.
inline constexpr std::size_t reduction_block = 4 << 20;

/// Sends range q of `in` (`range(q)`: first and count) to each rank q and reduces what comes for this rank's range
/// into `out`, which may be that range.
template <class Op, class T, class Range>
void reduce_ranges(collective_context& me, const T* in, Range range, T* out) {
  const auto [first, count] = range(me.rank());
  std::vector<T> theirs(count * static_cast<std::size_t>(me.size() - 1));
  const auto place = [&](int q) { return theirs.data() + static_cast<std::size_t>(q < me.rank() ? q : q - 1) * count; };
  me.move([&](int q, transfer& one) {
    const auto [begin, length] = range(q);
    fill_out(one, in + begin, length);
    fill_in(one, place(q), count);
  });
  const T* const mine = in + first;
  const auto source = [&](int q) { return q == me.rank() ? mine : static_cast<const T*>(place(q)); };
  const auto destination = [&](int) { return out; };
  reduce_elements<Op, T>(me.size(), source, 1, destination, 0, count);
}

struct element_range {
  std::size_t first = 0;
  std::size_t count = 0;
};

/// Cuts `counts` ranges, one per rank, into rounds of at most `room` elements each: `round(range_of)` is called for
/// each round with the ranges of all ranks in it.
template <class Counts, class Round>
void in_rounds(int ranks, std::size_t room, Counts counts, Round round) {
  std::size_t longest = 0;
  for (int q = 0; q < ranks; ++q) longest = std::max(longest, counts(q).count);
  for (std::size_t done = 0; done < longest; done += room) {
    round([&](int q) {
      const element_range whole = counts(q);
      const std::size_t skipped = std::min(done, whole.count);
      return element_range{whole.first + skipped, std::min(room, whole.count - skipped)};
    });
  }
}

template <class T>
[[nodiscard]] std::size_t round_length(int ranks) noexcept {
  return std::max<std::size_t>(1024, reduction_block / sizeof(T) / static_cast<std::size_t>(ranks));
}

/// Rank q reduces slice q of a buffer of `length` elements.
[[nodiscard]] inline element_range slice_of(std::size_t length, int ranks, int which) noexcept {
  const std::size_t slice = (length + static_cast<std::size_t>(ranks) - 1) / static_cast<std::size_t>(ranks);
  const std::size_t first = std::min(length, slice * static_cast<std::size_t>(which));
  return {first, std::min(slice, length - first)};
}

inline void barrier(collective_context me, where at) {
  me.enter({operation::barrier, reduction::none, {}, -1, 0, 0}, {}, {}, at);
  me.leave();
}

template <reducible T, reduction_tag Op>
void all_reduce(collective_context me, std::span<const T> in, std::span<T> out, Op, where at) {
  check_length(out.size(), in.size(), "all_reduce: the output", at);
  check_overlap(in, out, out.data(), "all_reduce", at);
  me.enter({operation::all_reduce, Op::code, element_code_of<T>(), -1, out.size(), 0}, {}, {}, at);
  const auto slices = [&](int q) { return slice_of(in.size(), me.size(), q); };
  if (me.size() == 1) {
    copy_elements(out.data(), in.data(), in.size());
  } else {
    in_rounds(me.size(), round_length<T>(me.size()), slices, [&](auto range) {
      const element_range mine = range(me.rank());
      reduce_ranges<Op>(me, in.data(), range, out.data() + mine.first);
      me.move([&](int q, transfer& one) {
        fill_out(one, out.data() + mine.first, mine.count);
        fill_in(one, out.data() + range(q).first, range(q).count);
      });
    });
  }
  me.leave();
}

template <reducible T, reduction_tag Op>
void reduce(collective_context me, std::span<const T> in, std::span<T> out, Op, int root, where at) {
  check_root(root, me.size(), "reduce", at);
  check_bytes(in, "reduce", at);
  const bool is_root = me.rank() == root;
  if (is_root) {  // nobody else has an output
    check_length(out.size(), in.size(), "reduce: the root's output", at);
    check_overlap(in, out, out.data(), "reduce", at);
  }
  me.enter({operation::reduce, Op::code, element_code_of<T>(), root, in.size(), 0}, {}, {}, at);
  const auto slices = [&](int q) { return slice_of(in.size(), me.size(), q); };
  if (me.size() == 1) {
    copy_elements(out.data(), in.data(), in.size());
  } else {
    in_rounds(me.size(), round_length<T>(me.size()), slices, [&](auto range) {
      const element_range mine = range(me.rank());
      std::vector<T> total(is_root ? 0 : mine.count);
      T* const result = is_root ? out.data() + mine.first : total.data();
      reduce_ranges<Op>(me, in.data(), range, result);
      me.move([&](int q, transfer& one) {
        if (q == root) fill_out(one, result, mine.count);
        if (is_root) fill_in(one, out.data() + range(q).first, range(q).count);
      });
    });
  }
  me.leave();
}

template <reducible T, reduction_tag Op>
void reduce_scatter_v(collective_context me, std::span<T> inout, std::span<const std::size_t> counts, Op, where at) {
  check_division(inout, counts, me.size(), "reduce_scatter_v", "reduce_scatter_v: the buffer", at);
  const std::uint64_t shape = shape_of(counts);
  me.enter({operation::reduce_scatter_v, Op::code, element_code_of<T>(), -1, inout.size(), shape}, counts, {}, at);
  expect_same_counts(me);
  if (me.size() > 1) {
    const auto ranges = [&](int q) { return element_range{offset_of(counts, q), counts[static_cast<std::size_t>(q)]}; };
    in_rounds(me.size(), round_length<T>(me.size()), ranges,
              [&](auto range) { reduce_ranges<Op>(me, inout.data(), range, inout.data() + range(me.rank()).first); });
  }
  me.leave();
}

template <reducible T, reduction_tag Op>
void reduce_scatter(collective_context me, std::span<const T> in, std::span<T> out, Op, where at) {
  const std::size_t own = out.size() * static_cast<std::size_t>(me.rank());
  check_length(in.size(), all_parts(out.size(), me.size()), "reduce_scatter: the input", at);
  check_overlap(out, in, in.data() + own, "reduce_scatter", at);
  me.enter({operation::reduce_scatter, Op::code, element_code_of<T>(), -1, out.size(), 0}, {}, {}, at);
  const auto ranges = [&](int q) { return element_range{out.size() * static_cast<std::size_t>(q), out.size()}; };
  in_rounds(me.size(), round_length<T>(me.size()), ranges,
            [&](auto range) { reduce_ranges<Op>(me, in.data(), range, out.data() + (range(me.rank()).first - own)); });
  me.leave();
}

template <transferable T>
void all_gather(collective_context me, std::span<const T> in, std::span<T> out, where at) {
  const std::size_t own = in.size() * static_cast<std::size_t>(me.rank());
  check_length(out.size(), all_parts(in.size(), me.size()), "all_gather: the output", at);
  check_overlap(in, out, out.data() + own, "all_gather", at);
  me.enter({operation::all_gather, reduction::none, element_code_of<T>(), -1, in.size(), 0}, {}, {}, at);
  copy_elements(out.data() + own, in.data(), in.size());
  me.move([&](int q, transfer& one) {
    fill_out(one, in.data(), in.size());
    fill_in(one, out.data() + in.size() * static_cast<std::size_t>(q), in.size());
  });
  me.leave();
}

template <transferable T>
void all_gather_v(collective_context me, std::span<T> inout, std::span<const std::size_t> counts, where at) {
  check_division(inout, counts, me.size(), "all_gather_v", "all_gather_v: the buffer", at);
  const std::uint64_t shape = shape_of(counts);
  me.enter({operation::all_gather_v, reduction::none, element_code_of<T>(), -1, inout.size(), shape}, counts, {}, at);
  expect_same_counts(me);
  const auto count_of = [&](int q) { return counts[static_cast<std::size_t>(q)]; };
  me.move([&](int q, transfer& one) {
    fill_out(one, inout.data() + offset_of(counts, me.rank()), count_of(me.rank()));
    fill_in(one, inout.data() + offset_of(counts, q), count_of(q));
  });
  me.leave();
}

template <transferable T>
void broadcast(collective_context me, std::span<T> inout, int root, where at) {
  check_root(root, me.size(), "broadcast", at);
  check_bytes(inout, "broadcast", at);
  me.enter({operation::broadcast, reduction::none, element_code_of<T>(), root, inout.size(), 0}, {}, {}, at);
  me.move([&](int q, transfer& one) {
    if (me.rank() == root) fill_out(one, inout.data(), inout.size());
    if (q == root) fill_in(one, inout.data(), inout.size());
  });
  me.leave();
}

template <transferable T>
void gather(collective_context me, std::span<const T> in, std::span<T> out, int root, where at) {
  check_root(root, me.size(), "gather", at);
  check_bytes(in, "gather", at);
  const std::size_t own = in.size() * static_cast<std::size_t>(me.rank());
  const bool is_root = me.rank() == root;
  if (is_root) {  // nobody else has an output
    check_length(out.size(), all_parts(in.size(), me.size()), "gather: the root's output", at);
    check_overlap(in, out, out.data() + own, "gather", at);
  }
  me.enter({operation::gather, reduction::none, element_code_of<T>(), root, in.size(), 0}, {}, {}, at);
  if (is_root) copy_elements(out.data() + own, in.data(), in.size());
  me.move([&](int q, transfer& one) {
    if (q == root) fill_out(one, in.data(), in.size());
    if (is_root) fill_in(one, out.data() + in.size() * static_cast<std::size_t>(q), in.size());
  });
  me.leave();
}

template <transferable T>
void scatter(collective_context me, std::span<const T> in, std::span<T> out, int root, where at) {
  check_root(root, me.size(), "scatter", at);
  check_bytes(out, "scatter", at);
  const std::size_t own = out.size() * static_cast<std::size_t>(me.rank());
  const bool is_root = me.rank() == root;
  if (is_root) {  // nobody else has an input
    check_length(in.size(), all_parts(out.size(), me.size()), "scatter: the root's input", at);
    check_overlap(out, in, in.data() + own, "scatter", at);
  }
  me.enter({operation::scatter, reduction::none, element_code_of<T>(), root, out.size(), 0}, {}, {}, at);
  if (is_root) copy_elements(out.data(), in.data() + own, out.size());
  me.move([&](int q, transfer& one) {
    if (is_root) fill_out(one, in.data() + out.size() * static_cast<std::size_t>(q), out.size());
    if (q == root) fill_in(one, out.data(), out.size());
  });
  me.leave();
}

template <transferable T>
void all_to_all(collective_context me, std::span<const T> in, std::span<T> out, where at) {
  check_all_to_all(in, out, me.size(), at);
  const std::size_t part = in.size() / static_cast<std::size_t>(me.size());
  me.enter({operation::all_to_all, reduction::none, element_code_of<T>(), -1, in.size(), 0}, {}, {}, at);
  const auto place = [&](int q) { return part * static_cast<std::size_t>(q); };
  copy_elements(out.data() + place(me.rank()), in.data() + place(me.rank()), part);
  me.move([&](int q, transfer& one) {
    fill_out(one, in.data() + place(q), part);
    fill_in(one, out.data() + place(q), part);
  });
  me.leave();
}

template <transferable T>
void all_to_all_v(collective_context me, std::span<const T> in, std::span<const std::size_t> send_counts,
                  std::span<T> out, std::span<const std::size_t> receive_counts, where at) {
  check_all_to_all_v(in, send_counts, out, receive_counts, me.size(), at);
  me.enter({operation::all_to_all_v, reduction::none, element_code_of<T>(), -1, 0, 0}, send_counts, receive_counts, at);
  expect_equal_pairs(me);
  const auto own = static_cast<std::size_t>(me.rank());
  copy_elements(out.data() + offset_of(receive_counts, me.rank()), in.data() + offset_of(send_counts, me.rank()),
                send_counts[own]);
  me.move([&](int q, transfer& one) {
    fill_out(one, in.data() + offset_of(send_counts, q), send_counts[static_cast<std::size_t>(q)]);
    fill_in(one, out.data() + offset_of(receive_counts, q), receive_counts[static_cast<std::size_t>(q)]);
  });
  me.leave();
}

}  // namespace mpi
}  // namespace belay::inline BELAY_ABI
