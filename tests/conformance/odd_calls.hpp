// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// One call of any operation as a value, so that suites can make calls that differ in one thing.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <span>
#include <utility>
#include <vector>

#include "belay/comm.hpp"

namespace conformance {

enum class call_kind {
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
  pair  // rank 0 of the world sends to the odd rank
};
inline constexpr int call_kinds = 12;  // collectives: without pair

[[nodiscard]] constexpr const char* name(call_kind what) {
  constexpr const char* names[] = {"barrier",      "all_reduce", "reduce_scatter", "reduce_scatter_v", "all_gather",
                                   "all_gather_v", "all_to_all", "all_to_all_v",   "broadcast",        "reduce",
                                   "gather",       "scatter",    "a pair"};
  return names[static_cast<int>(what)];
}

[[nodiscard]] constexpr bool has_root(call_kind what) {
  return what == call_kind::broadcast || what == call_kind::reduce || what == call_kind::gather ||
         what == call_kind::scatter;
}
[[nodiscard]] constexpr bool has_counts(call_kind what) {
  return what == call_kind::reduce_scatter_v || what == call_kind::all_gather_v || what == call_kind::all_to_all_v;
}
[[nodiscard]] constexpr bool reduces(call_kind what) {
  return what == call_kind::all_reduce || what == call_kind::reduce_scatter || what == call_kind::reduce_scatter_v ||
         what == call_kind::reduce;
}
/// Those whose input and output may lie apart on every rank.
[[nodiscard]] constexpr bool has_two_buffers(call_kind what) {
  return what == call_kind::all_reduce || what == call_kind::reduce_scatter || what == call_kind::all_gather ||
         what == call_kind::all_to_all || what == call_kind::all_to_all_v;
}

enum class word { f32, f64, i32 };
enum class redop { sum, product, maximum, average };
enum class way { blocking, started };
enum class aliasing { apart, in_place, overlapping };

struct odd_call {
  call_kind what = call_kind::barrier;
  std::size_t n = 1;  // elements a rank
  word type = word::f32;
  redop reduce = redop::sum;
  int root = 0;          // pair: 1 when the odd rank sends too
  std::size_t skew = 0;  // by which the first count of a vector is longer, and the last shorter
  way how = way::blocking;
  aliasing alias = aliasing::apart;
  int group = 0;  // 0: the world; 1, 2: two more of all ranks; 3: of rank 0 and the odd one
  int tag = 0;
};

/// The groups in which a rank can call.
template <class Rank>
class call_groups {
 public:
  using group_type = typename Rank::group_type;

  call_groups(Rank& rank, int odd_rank) : number_(rank.number()) {
    std::vector<int> everybody(static_cast<std::size_t>(rank.size())), two{0, odd_rank};
    std::iota(everybody.begin(), everybody.end(), 0);
    groups_.push_back(rank.world());
    groups_.push_back(rank.group(everybody));
    groups_.push_back(rank.group(everybody));
    if (number_ == 0 || number_ == odd_rank) groups_.push_back(rank.group(two));
  }

  [[nodiscard]] int number() const { return number_; }
  [[nodiscard]] const group_type& operator[](int which) const { return groups_[static_cast<std::size_t>(which)]; }

 private:
  int number_;
  std::vector<group_type> groups_;
};

/// A rank's buffers with a pattern of its own in all bytes.
class call_memory {
 public:
  explicit call_memory(int rank) : rank_(rank), in_(room), out_(room) { reset(); }

  void reset() {
    fill(in_, 1);
    fill(out_, 101);
  }
  [[nodiscard]] bool untouched() const {
    std::vector<double> expected(in_.size());
    fill(expected, 1);
    const bool same_in = std::memcmp(in_.data(), expected.data(), in_.size() * 8) == 0;
    fill(expected, 101);
    return same_in && std::memcmp(out_.data(), expected.data(), out_.size() * 8) == 0;
  }

  template <class T>
  [[nodiscard]] std::span<T> in(std::size_t count) {
    return {reinterpret_cast<T*>(in_.data()), count};
  }
  template <class T>
  [[nodiscard]] std::span<T> out(std::size_t count) {
    return {reinterpret_cast<T*>(out_.data()), count};
  }

 private:
  void fill(std::vector<double>& to, int salt) const {
    auto* const bytes = reinterpret_cast<unsigned char*>(to.data());
    for (std::size_t i = 0; i < to.size() * 8; ++i)
      bytes[i] = static_cast<unsigned char>((rank_ + salt) * 37 + static_cast<int>(i % 251));
  }

  static constexpr std::size_t room = 1600;  // doubles: the parts of five ranks

  int rank_;
  std::vector<double> in_, out_;
};

namespace calls {

template <class T, class Group, class Op>
void reducing(const Group& group, const odd_call& call, call_memory& memory, Op op, belay::where at) {
  const auto size = static_cast<std::size_t>(group.size()), me = static_cast<std::size_t>(group.rank());
  const auto whole = memory.in<T>(call.n * size);
  const bool apart = call.alias == aliasing::apart, shifted = call.alias == aliasing::overlapping;
  const auto part = apart ? memory.out<T>(call.n) : memory.in<T>(call.n * (me + 1) + shifted).last(call.n);
  std::vector<std::size_t> counts(size, call.n);
  counts.front() += call.skew;
  counts.back() -= call.skew;
  const bool started = call.how == way::started;
  switch (call.what) {
    case call_kind::all_reduce:
      if (started) {
        group.start_all_reduce(whole, op, at).wait();
      } else if constexpr (requires { group.all_reduce(whole, whole, op, at); }) {
        const auto result =
            apart ? memory.out<T>(call.n * size) : memory.in<T>(call.n * size + shifted).last(call.n * size);
        group.all_reduce(whole, result, op, at);
      } else {  // in place only
        if (shifted) throw belay::usage_error("this communicator has no all_reduce from one buffer into another", at);
        group.all_reduce(whole, op, at);
      }
      break;
    case call_kind::reduce_scatter:
      if (started)
        group.start_reduce_scatter(whole, part, op, at).wait();
      else
        group.reduce_scatter(whole, part, op, at);
      break;
    case call_kind::reduce_scatter_v:
      if (started)
        group.start_reduce_scatter_v(whole, counts, op, at).wait();
      else
        group.reduce_scatter_v(whole, counts, op, at);
      break;
    default:
      if (started)
        group.start_reduce(whole, op, call.root, at).wait();
      else
        group.reduce(whole, op, call.root, at);
  }
}

template <class T, class Group>
void moving(const Group& group, const odd_call& call, call_memory& memory, belay::where at) {
  const auto size = static_cast<std::size_t>(group.size()), me = static_cast<std::size_t>(group.rank());
  const bool apart = call.alias == aliasing::apart, shifted = call.alias == aliasing::overlapping,
             started = call.how == way::started;
  const auto whole = memory.out<T>(call.n * size);
  const auto part = apart ? memory.in<T>(call.n) : memory.out<T>(call.n * (me + 1) + shifted).last(call.n);
  const auto other = apart ? memory.in<T>(call.n * size) : memory.out<T>(call.n * size + shifted).last(call.n * size);
  std::vector<std::size_t> counts(size, call.n);
  counts.front() += call.skew;
  counts.back() -= call.skew;
  switch (call.what) {
    case call_kind::all_gather:
      if (started)
        group.template start_all_gather<T>(part, whole, at).wait();
      else
        group.template all_gather<T>(part, whole, at);
      break;
    case call_kind::all_gather_v:
      if (started)
        group.start_all_gather_v(whole, counts, at).wait();
      else
        group.all_gather_v(whole, counts, at);
      break;
    case call_kind::all_to_all:
      if (started)
        group.template start_all_to_all<T>(other, whole, at).wait();
      else
        group.template all_to_all<T>(other, whole, at);
      break;
    case call_kind::all_to_all_v: {
      // Of a skewed vector the first rank gets more of every rank, and the last one less.
      const std::size_t mine = me == 0 ? call.n + call.skew : me + 1 == size ? call.n - call.skew : call.n;
      const std::vector<std::size_t> receives(size, mine);
      const auto from =
          mine == call.n && call.skew == 0 ? other : memory.in<T>(call.n * size);  // in place has one vector
      const auto to = memory.out<T>(mine * size);
      if (started)
        group.template start_all_to_all_v<T>(from, counts, to, receives, at).wait();
      else
        group.template all_to_all_v<T>(from, counts, to, receives, at);
      break;
    }
    case call_kind::broadcast:
      if (started)
        group.start_broadcast(whole, call.root, at).wait();
      else
        group.broadcast(whole, call.root, at);
      break;
    case call_kind::gather:
      if (started)
        group.template start_gather<T>(memory.in<T>(call.n), whole, call.root, at).wait();
      else
        group.template gather<T>(memory.in<T>(call.n), whole, call.root, at);
      break;
    default:
      if (started)
        group.template start_scatter<T>(whole, memory.in<T>(call.n), call.root, at).wait();
      else
        group.template scatter<T>(whole, memory.in<T>(call.n), call.root, at);
  }
}

template <class Group>
void transfer(const Group& group, const odd_call& call, call_memory& memory, bool sends, int peer, belay::where at) {
  const belay::p2p one = sends ? belay::p2p::send(peer, memory.in<float>(call.n), call.tag)
                               : belay::p2p::receive(peer, memory.out<float>(call.n), call.tag);
  if (call.how == way::started)
    group.start_exchange({&one, 1}, at).wait();
  else
    group.exchange({&one, 1}, at);
}

template <class T, class Group>
void of_type(const Group& group, const odd_call& call, call_memory& memory, belay::where at) {
  if (!reduces(call.what)) return moving<T>(group, call, memory, at);
  switch (call.reduce) {
    case redop::sum: return reducing<T>(group, call, memory, belay::sum, at);
    case redop::product: return reducing<T>(group, call, memory, belay::product, at);
    case redop::maximum: return reducing<T>(group, call, memory, belay::maximum, at);
    case redop::average: return reducing<T>(group, call, memory, belay::average, at);
  }
}

}  // namespace calls

/// Makes this rank's call.
template <class Rank>
void perform(const call_groups<Rank>& groups, const odd_call& call, call_memory& memory, int odd_rank,
             belay::where at) {
  const auto& group = groups[call.group];
  if (call.what == call_kind::pair) {
    if (groups.number() == 0) calls::transfer(group, call, memory, true, odd_rank, at);
    if (groups.number() == odd_rank) calls::transfer(group, call, memory, call.root == 1, 0, at);
  } else if (call.what == call_kind::barrier) {
    if (call.how == way::started)
      group.start_barrier(at).wait();
    else
      group.barrier(at);
  } else {
    switch (call.type) {
      case word::f32: return calls::of_type<float>(group, call, memory, at);
      case word::f64: return calls::of_type<double>(group, call, memory, at);
      case word::i32: return calls::of_type<std::int32_t>(group, call, memory, at);
    }
  }
}
}  // namespace conformance
