// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The collectives that move one rank's elements to others. Bytes go from the buffer of one rank to that of another
// without a stop where the buffers are seen.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <span>

#include "belay/backend/host/collectives/bounce_buffers.hpp"
#include "belay/backend/host/collectives/collective_context.hpp"
#include "belay/backend/host/tuning/algorithm.hpp"
#include "belay/comm/reduce_blocks.hpp"
#include "belay/comm/reduction.hpp"
#include "belay/core/config.hpp"
#include "belay/core/error.hpp"
#include "belay/core/where.hpp"

namespace belay::inline BELAY_ABI {
namespace host {

[[nodiscard]] constexpr std::size_t index_of(int rank) noexcept { return static_cast<std::size_t>(rank); }

/// Where a part lies and how long it is, in bytes.
struct byte_range {
  std::size_t first = 0;
  std::size_t bytes = 0;
};

/// Where all buffers are seen a rank stores its bytes into its peers' rather than that they fetch them: its own are in
/// its cache, theirs would come out of it line by line.
[[nodiscard]] inline bool stores_into_peers(algorithm how) noexcept {
  return how == algorithm::push || how == algorithm::one_shot;
}

/// The same for a root with one peer, up to `most` bytes. More of them fetch at the same time.
template <class Context>
[[nodiscard]] bool root_stores(Context me, algorithm how, std::size_t bytes, std::size_t most) noexcept {
  return me.size() == 2 && bytes <= most && stores_into_peers(how);
}

/// Of more than `most_unshared` bytes that go between each peer and a root that has nothing to copy for itself, how
/// many the peer copies. The root takes its share of the work: the end of each part, which is what its caches may still
/// hold.
template <class Context>
[[nodiscard]] std::size_t copied_by_peers(Context me, algorithm how, std::size_t bytes,
                                          std::size_t most_unshared) noexcept {
  if (bytes <= most_unshared || !stores_into_peers(how)) return bytes;
  return (bytes - share_of(bytes, me.size())) / 64 * 64;
}

/// Bytes of a block that is copied to several places in turn: it stays in the cache meanwhile.
inline constexpr std::size_t block_to_all = 256 * 1024;

/// See `gather_parts`, where buffers are not seen. (A call of its own: where they are, all is short.)
template <class From, class To, class Context>
[[gnu::noinline]] void gather_parts_staged(Context me, const std::byte* in, std::byte* out, From from, To to) {
  const byte_range own = from(me.rank());
  std::size_t longest = 0;
  for (int q = 0; q < me.size(); ++q) longest = std::max(longest, from(q).bytes);
  through_staging<std::byte>(
      me, longest, 1,
      [&](round_range now, std::byte* half) {
        stage_copy(me, half, in + own.first + now.first, clipped(now, own.bytes));
      },
      [&](round_range now, auto halves) {
        for (int q = 0; q < me.size(); ++q) {
          const std::size_t n = clipped(now, from(q).bytes);
          me.copies().copy(out + to(q) + now.first, halves(q), n);
        }
      });
}

/// Everybody's part to everybody, `bytes` in all: `from(q)` is rank q's part in its input, `to(q)` its place in this
/// rank's output.
template <class From, class To, class Context>
void gather_parts(Context me, const std::byte* in, std::byte* out, std::size_t bytes, From from, To to) {
  const variant chosen = variant_of(me, bytes);
  if (chosen.how == algorithm::staged) return gather_parts_staged(me, in, out, from, to);
  if (!stores_into_peers(chosen.how)) {
    for (int k = 0; k < me.size(); ++k) {
      const int q = me.behind(k);
      if (q == me.rank() && out + to(q) == in + from(q).first) continue;
      me.endpoint->fetch(q, me.endpoint->descriptor_of(q).input, from(q).first, out + to(q), from(q).bytes, chosen.by);
    }
    return;
  }
  // A block to everybody before the next one: only the first of its copies reads beyond the caches.
  const byte_range own = from(me.rank());
  const bool in_place = out + to(me.rank()) == in + own.first;
  const std::size_t moved = own.bytes * static_cast<std::size_t>(me.size() - (in_place ? 1 : 0));
  for (round_range now; now.first < own.bytes; now.first += now.count) {
    now.count = std::min(block_to_all, own.bytes - now.first);
    const std::byte* const block = in + own.first + now.first;
    const auto store = [&](std::byte* place) { me.copies().push_by(chosen.by, place, block, now.count, own.bytes, moved); };
    if (!in_place) store(out + to(me.rank()) + now.first);
    for (int k = 1; k < me.size(); ++k) {  // everybody begins at another peer
      store(me.endpoint->output_of(me.behind(k)) + to(me.rank()) + now.first);
    }
  }
}

template <class T>
[[nodiscard]] const std::byte* bytes_of(std::span<const T> of) noexcept {
  return reinterpret_cast<const std::byte*>(of.data());
}
template <class T>
[[nodiscard]] std::byte* bytes_of(std::span<T> of) noexcept {
  return reinterpret_cast<std::byte*>(of.data());
}

template <transferable T, class Context>
void all_gather(Context me, std::span<const T> in, std::span<T> out, const where& at) {
  const std::size_t own = in.size() * static_cast<std::size_t>(me.rank());
  check_length(out.size(), all_parts(in.size(), me.size()), "all_gather: the output", at);
  check_overlap(in, out, out.data() + own, "all_gather", at);
  const fingerprint print{operation::all_gather, reduction::none, element_code_of<T>(), -1, in.size(), 0};
  const std::size_t each = in.size_bytes();
  const auto take = [&](peer_payloads payloads) {
    std::byte* to = bytes_of(out);
    for (int q = 0; q < me.size(); ++q, to += each) copy_elements(to, payloads(q), each);
  };
  if (const algorithm how = me.endpoint->eager_algorithm(each, sizeof(T)); how != algorithm::automatic) {
    me.endpoint->eager_round(how, print, in.data(), each, me.limit, at);
    return take(me.endpoint->payloads());
  }
  me.endpoint->enter_rendezvous(call_buffers_of(print, in, out), me.limit, at);
  if (me.endpoint->all_in_eager_buffers()) {
    take(me.endpoint->eager_buffers());
    return me.endpoint->exit_without_wait();
  }
  gather_parts(
      me, bytes_of(in), bytes_of(out), out.size_bytes(),
      [&](int) {
        return byte_range{0, each};
      },
      [&](int q) { return static_cast<std::size_t>(q) * each; });
  me.endpoint->exit_rendezvous();
}

template <transferable T, class Context>
void all_gather_v(Context me, std::span<T> inout, std::span<const std::size_t> counts, const where& at) {
  check_division(inout, counts, me.size(), "all_gather_v", "all_gather_v: the buffer", at);
  const fingerprint print{operation::all_gather_v, reduction::none, element_code_of<T>(), -1, inout.size(),
                          shape_of(counts)};
  me.endpoint->enter_rendezvous(call_buffers_of(print, inout, inout, counts), me.limit, at);
  expect_same_counts(me);
  const auto first = [&](int q) { return offset_of(counts, q) * sizeof(T); };
  gather_parts(
      me, bytes_of(inout), bytes_of(inout), inout.size_bytes(),
      [&](int q) {
        return byte_range{first(q), counts[static_cast<std::size_t>(q)] * sizeof(T)};
      },
      first);
  me.endpoint->exit_rendezvous();
}

template <transferable T, class Context>
void broadcast(Context me, std::span<T> inout, int root, const where& at) {
  check_root(root, me.size(), "broadcast", at);
  check_bytes(inout, "broadcast", at);
  const fingerprint print{operation::broadcast, reduction::none, element_code_of<T>(), root, inout.size(), 0};
  const std::size_t bytes = inout.size_bytes();
  const bool is_root = me.rank() == root;
  if (const algorithm how = me.endpoint->eager_algorithm(bytes, sizeof(T), eager_traffic::root);
      how != algorithm::automatic) {
    me.endpoint->eager_round(how, print, inout.data(), is_root ? bytes : 0, me.limit, at);
    copy_elements(bytes_of(inout), me.endpoint->payloads()(root), bytes);
    return;
  }
  me.endpoint->enter_rendezvous(call_buffers_of(print, inout, inout), me.limit, at);
  const auto [how, by] = variant_of(me, bytes);
  if (root_stores(me, how, bytes, most_stored_by_free_root)) {
    if (is_root) me.copies().copy_by(by, me.endpoint->output_of(1 - root), inout.data(), bytes);
  } else if (how != algorithm::staged) {
    const std::size_t fetched = copied_by_peers(me, how, bytes, most_stored_by_free_root);
    if (!is_root) me.endpoint->fetch(root, me.endpoint->descriptor_of(root).input, 0, inout.data(), fetched, by);
    for (int q = 0; q < me.size() && is_root && fetched < bytes; ++q) {
      if (q != root) me.copies().copy_by(by, me.endpoint->output_of(q) + fetched, bytes_of(inout) + fetched, bytes - fetched);
    }
  } else {
    through_staging<std::byte>(
        me, bytes, 1,
        [&](round_range now, std::byte* half) {
          if (is_root) stage_copy(me, half, bytes_of(inout) + now.first, now.count);
        },
        [&](round_range now, auto halves) {
          if (!is_root) me.copies().copy(bytes_of(inout) + now.first, halves(root), now.count);
        });
  }
  me.endpoint->exit_rendezvous();
}

template <transferable T, class Context>
void gather(Context me, std::span<const T> in, std::span<T> out, int root, const where& at) {
  check_root(root, me.size(), "gather", at);
  check_bytes(in, "gather", at);
  const std::size_t own = in.size() * static_cast<std::size_t>(me.rank());
  const bool is_root = me.rank() == root;
  if (is_root) {  // nobody else has an output
    check_length(out.size(), all_parts(in.size(), me.size()), "gather: the root's output", at);
    check_overlap(in, out, out.data() + own, "gather", at);
  }
  const fingerprint print{operation::gather, reduction::none, element_code_of<T>(), root, in.size(), 0};
  const std::size_t each = in.size_bytes();
  std::byte* to = bytes_of(out);
  if (const algorithm how = me.endpoint->eager_algorithm(each, sizeof(T), eager_traffic::root);
      how != algorithm::automatic) {
    me.endpoint->eager_round(how, print, in.data(), is_root ? 0 : each, me.limit, at);
    for (int q = 0; q < me.size() && is_root; ++q, to += each) copy_elements(to, me.endpoint->payloads()(q), each);
    return;
  }
  me.endpoint->enter_rendezvous(call_buffers_of(print, in, is_root ? out : std::span<T>()), me.limit, at);
  const auto [how, by] = variant_of(me, each);
  if (how != algorithm::staged && how != algorithm::cma) {
    const call_descriptor& roots = me.endpoint->descriptor_of(root);
    const bool in_place = roots.input.is_at(roots.output, each * index_of(root));
    const std::size_t stored = in_place ? copied_by_peers(me, how, each, most_stored_by_root) : each;
    std::byte* const place = me.endpoint->output_of(root) + own * sizeof(T);
    if (place != bytes_of(in)) me.copies().copy_by(by, place, in.data(), stored);
    for (int q = 0; q < me.size() && is_root && stored < each; ++q) {
      if (q != root) me.copies().copy_by(by, to + each * index_of(q) + stored, me.endpoint->input_of(q) + stored, each - stored);
    }
  } else if (how == algorithm::cma) {
    for (int q = 0; q < me.size() && is_root; ++q, to += each) {
      if (q != root || to != bytes_of(in)) me.endpoint->fetch(q, me.endpoint->descriptor_of(q).input, 0, to, each);
    }
  } else {
    through_staging<std::byte>(
        me, each, 1,
        [&](round_range now, std::byte* half) { stage_copy(me, half, bytes_of(in) + now.first, now.count); },
        [&](round_range now, auto halves) {
          for (int q = 0; q < me.size() && is_root; ++q) {
            me.copies().copy(to + static_cast<std::size_t>(q) * each + now.first, halves(q), now.count);
          }
        });
  }
  me.endpoint->exit_rendezvous();
}

template <transferable T, class Context>
void scatter(Context me, std::span<const T> in, std::span<T> out, int root, const where& at) {
  check_root(root, me.size(), "scatter", at);
  check_bytes(out, "scatter", at);
  const std::size_t own = out.size() * static_cast<std::size_t>(me.rank());
  const bool is_root = me.rank() == root;
  if (is_root) {  // nobody else has an input
    check_length(in.size(), all_parts(out.size(), me.size()), "scatter: the root's input", at);
    check_overlap(out, in, in.data() + own, "scatter", at);
  }
  const fingerprint print{operation::scatter, reduction::none, element_code_of<T>(), root, out.size(), 0};
  const std::size_t each = out.size_bytes(), all = each * static_cast<std::size_t>(me.size());
  const std::size_t first = own * sizeof(T);
  if (const algorithm how = me.endpoint->eager_algorithm(all, sizeof(T), eager_traffic::root);
      how != algorithm::automatic) {
    me.endpoint->eager_round(how, print, in.data(), is_root ? all : 0, me.limit, at);
    copy_elements(bytes_of(out), me.endpoint->payloads()(root) + first, each);
    return;
  }
  me.endpoint->enter_rendezvous(call_buffers_of(print, is_root ? in : std::span<const T>(), out), me.limit, at);
  const auto [how, by] = variant_of(me, each);
  const call_descriptor& roots = me.endpoint->descriptor_of(root);
  const bool in_place = roots.output.is_at(roots.input, each * index_of(root));
  if (root_stores(me, how, each, in_place ? most_stored_by_free_root : most_stored_by_root)) {
    if (is_root) {
      me.copies().copy_by(by, me.endpoint->output_of(1 - root), in.data() + out.size() * static_cast<std::size_t>(1 - root), each);
      if (out.data() != in.data() + own) me.copies().copy_by(by, out.data(), in.data() + own, each);
    }
  } else if (how != algorithm::staged) {
    const std::size_t fetched = in_place ? copied_by_peers(me, how, each, most_stored_by_free_root) : each;
    if (!is_root || !in_place) me.endpoint->fetch(root, roots.input, first, out.data(), is_root ? each : fetched, by);
    for (int q = 0; q < me.size() && is_root && fetched < each; ++q) {
      if (q == root) continue;
      me.copies().copy_by(by, me.endpoint->output_of(q) + fetched, bytes_of(in) + each * index_of(q) + fetched, each - fetched);
    }
  } else {
    through_staging<std::byte>(
        me, each, static_cast<std::size_t>(me.size()),
        [&](round_range now, std::byte* half) {
          for (int q = 0; q < me.size() && is_root; ++q, half += now.count) {
            stage_copy(me, half, bytes_of(in) + static_cast<std::size_t>(q) * each + now.first, now.count);
          }
        },
        [&](round_range now, auto halves) {
          me.copies().copy(bytes_of(out) + now.first, halves(root) + static_cast<std::size_t>(me.rank()) * now.count,
                    now.count);
        });
  }
  me.endpoint->exit_rendezvous();
}

}  // namespace host
}  // namespace belay::inline BELAY_ABI
