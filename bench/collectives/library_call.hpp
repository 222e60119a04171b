// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The library's operation on this rank's buffers: written anew, called, and compared with the ordered reference.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "belay/comm/collective.hpp"
#include "belay/comm/communicator.hpp"
#include "belay/comm/reduction.hpp"
#include "collectives/operation.hpp"
#include "collectives/options.hpp"
#include "collectives/pattern.hpp"

namespace bench {

/// One operation of the library on this rank's buffers.
class library_call {
 public:
  library_call() = default;
  library_call(const library_call&) = delete;
  library_call& operator=(const library_call&) = delete;
  virtual ~library_call() = default;

  virtual void prepare(extent size) = 0;
  /// Whether the library has this form.
  [[nodiscard]] virtual bool offers(bool in_place) const = 0;
  /// Writes this rank's input anew.
  virtual void freshen(bool in_place) = 0;
  virtual void run(bool in_place, int calls) = 0;
  /// Before a call that is checked: nothing of an earlier result is left.
  virtual void spoil() = 0;
  /// Elements of this rank's result that are not the reference's, bit for bit.
  [[nodiscard]] virtual std::size_t wrong(bool in_place) const = 0;
};

/// The part that moving and reducing share: buffers of `T`, and where input and result lie in them.
template <class Group, class T>
class buffers_of : public library_call {
 public:
  /// `in` and `out` hold the larger buffer of the largest call.
  buffers_of(Group group, op what, T* in, T* out, int root)
      : group_(group), what_(what), in_(in), out_(out), root_(root) {}

  void prepare(extent size) override {
    size_ = size;
    counts_.assign(static_cast<std::size_t>(group_.size()), size.count);
  }
  void freshen(bool in_place) override {
    const bool part = what_ == op::all_gather || what_ == op::all_gather_v || what_ == op::gather;
    T* to = in_;
    // In place it is in the output, and where it is one part of that, in this rank's.
    if (in_place && (what_ != op::gather || is_root())) to = part ? own_part() : out_;
    pattern_.write(to, part ? size_.count : size_.elements(), group_.rank(), ++round_);
  }
  void spoil() override { std::memset(static_cast<void*>(out_), 0x5a, size_.elements() * sizeof(T)); }

 protected:
  [[nodiscard]] std::size_t rank() const { return static_cast<std::size_t>(group_.rank()); }
  [[nodiscard]] bool is_root() const { return group_.rank() == root_; }
  [[nodiscard]] T* own_part() const { return out_ + size_.count * rank(); }
  [[nodiscard]] std::span<T> part_at(T* first) const { return {first, size_.count}; }
  [[nodiscard]] std::span<T> all_at(T* first) const { return {first, size_.elements()}; }

  /// Of `size_.count` elements from `result` on, how many differ from `expected(i)`.
  template <class Expected>
  [[nodiscard]] std::size_t count_wrong(const T* result, Expected expected) const {
    std::size_t out = 0;
    for (std::size_t i = 0; i < size_.count; ++i) {
      const T right = expected(i);
      out += std::memcmp(&result[i], &right, sizeof(T)) != 0 ? 1U : 0U;
    }
    return out;
  }

  Group group_;
  op what_;
  T* in_;
  T* out_;
  int root_;
  extent size_;
  unsigned round_ = 0;
  std::vector<std::size_t> counts_;
  pattern<T> pattern_;
};

/// A barrier. This one and `all_reducer` are classes of their own because they also call the unchecked baseline.
template <class Group, class T>
class barrier_call final : public buffers_of<Group, T> {
 public:
  using buffers_of<Group, T>::buffers_of;

  [[nodiscard]] bool offers(bool in_place) const override { return !in_place; }
  void run(bool, int calls) override {
    for (int i = 0; i < calls; ++i) belay::barrier(this->group_);
  }
  [[nodiscard]] std::size_t wrong(bool) const override { return 0; }
};

template <class Group, class T>
class mover final : public buffers_of<Group, T> {
 public:
  using buffers_of<Group, T>::buffers_of;

  [[nodiscard]] bool offers(bool in_place) const override {
    switch (this->what_) {
      case op::all_gather_v:
      case op::broadcast: return in_place;
      case op::send_recv: return !in_place;
      default: return true;
    }
  }

  void run(bool in_place, int calls) override {
    for (int i = 0; i < calls; ++i) call(in_place);
  }

  [[nodiscard]] std::size_t wrong(bool in_place) const override {
    const std::size_t mine = this->rank() * this->size_.count;
    switch (this->what_) {
      case op::all_gather:
      case op::all_gather_v: return parts_wrong(0);
      case op::gather: return this->is_root() ? parts_wrong(0) : 0;
      case op::all_to_all:
      case op::all_to_all_v: return parts_wrong(mine);
      case op::broadcast: return part_wrong(this->out_, this->root_, 0);
      case op::scatter:
        return part_wrong(in_place && this->is_root() ? this->own_part() : this->out_, this->root_, mine);
      default: return part_wrong(this->out_, last(), 0);
    }
  }

 private:
  [[nodiscard]] int next() const { return (this->group_.rank() + 1) % this->group_.size(); }
  [[nodiscard]] int last() const { return (this->group_.rank() + this->group_.size() - 1) % this->group_.size(); }

  void call(bool in_place) const {
    const Group& group = this->group_;
    const std::span<T> out = this->all_at(this->out_), none;
    const std::span<T> in = this->all_at(in_place ? this->out_ : this->in_);
    const bool root = this->is_root();
    const bool own = in_place && root;
    switch (this->what_) {
      case op::all_gather:
        belay::all_gather(group, this->part_at(in_place ? this->own_part() : this->in_), out);
        return;
      case op::all_gather_v: belay::all_gather_v(group, out, this->counts_); return;
      case op::all_to_all: belay::all_to_all(group, in, out); return;
      case op::all_to_all_v: belay::all_to_all_v(group, in, this->counts_, out, this->counts_); return;
      case op::broadcast: belay::broadcast(group, out, this->root_); return;
      case op::gather:
        belay::gather(group, this->part_at(own ? this->own_part() : this->in_), root ? out : none, this->root_);
        return;
      case op::scatter:
        belay::scatter(group, root ? in : none, this->part_at(own ? this->own_part() : this->out_), this->root_);
        return;
      default: {
        const belay::p2p both[] = {belay::p2p::send(next(), this->part_at(this->in_)),
                                   belay::p2p::receive(last(), this->part_at(this->out_))};
        belay::exchange(group, both);
        return;
      }
    }
  }

  // A part that is rank `from`'s input from element `first` on.
  [[nodiscard]] std::size_t part_wrong(const T* result, int from, std::size_t first) const {
    return this->count_wrong(result, [&](std::size_t i) { return this->pattern_.at(from, first + i, this->round_); });
  }
  [[nodiscard]] std::size_t parts_wrong(std::size_t first) const {
    std::size_t out = 0;
    for (int q = 0; q < this->group_.size(); ++q) {
      out += part_wrong(this->out_ + this->size_.count * static_cast<std::size_t>(q), q, first);
    }
    return out;
  }
};

template <class Group, class T, class Op>
class all_reducer final : public buffers_of<Group, T> {
 public:
  using buffers_of<Group, T>::buffers_of;

  [[nodiscard]] bool offers(bool in_place) const override { return in_place || two_buffers; }

  void run(bool in_place, int calls) override {
    for (int i = 0; i < calls; ++i) call(in_place);
  }

  [[nodiscard]] std::size_t wrong(bool) const override {
    return this->count_wrong(this->out_, [this, ranks = this->group_.size()](std::size_t i) {
      return this->pattern_.template reduced<Op>(ranks, i, this->round_);
    });
  }

 private:
  static constexpr bool two_buffers = requires(const Group& g, std::span<const T> in, std::span<T> out, Op how) {
    g.all_reduce(in, out, how);
  };

  void call(bool in_place) const {
    const std::span<T> out = this->part_at(this->out_);
    if constexpr (two_buffers) {
      if (!in_place) {
        this->group_.all_reduce(std::span<const T>(this->in_, this->size_.count), out, Op{});
        return;
      }
    }
    belay::all_reduce(this->group_, out, Op{});
  }
};

/// All others, which reduce.
template <class Group, class T, class Op>
class reducer final : public buffers_of<Group, T> {
 public:
  using buffers_of<Group, T>::buffers_of;

  [[nodiscard]] bool offers(bool in_place) const override { return in_place || this->what_ == op::reduce_scatter; }

  void run(bool in_place, int calls) override {
    for (int i = 0; i < calls; ++i) call(in_place);
  }

  [[nodiscard]] std::size_t wrong(bool in_place) const override {
    const bool scattered = this->what_ != op::reduce;
    if (!scattered && !this->is_root()) return 0;
    const std::size_t first = scattered ? this->rank() * this->size_.count : 0;
    const T* const result = scattered && in_place ? this->own_part() : this->out_;
    const int ranks = this->group_.size();
    return this->count_wrong(
        result, [&](std::size_t i) { return this->pattern_.template reduced<Op>(ranks, first + i, this->round_); });
  }

 private:
  void call(bool in_place) const {
    const Group& group = this->group_;
    const std::span<T> out = this->part_at(this->out_);
    switch (this->what_) {
      case op::reduce_scatter:
        if (in_place)
          belay::reduce_scatter(group, this->all_at(this->out_), this->part_at(this->own_part()), Op{});
        else
          belay::reduce_scatter(group, this->all_at(this->in_), out, Op{});
        return;
      case op::reduce_scatter_v: belay::reduce_scatter_v(group, this->all_at(this->out_), this->counts_, Op{}); return;
      default: belay::reduce(group, out, Op{}, this->root_); return;
    }
  }
};

/// The library call of `which` for these options; none where such elements cannot be reduced.
template <class T, class Group>
[[nodiscard]] std::unique_ptr<library_call> make_subject_of(const Group& group, op which, const options& what,
                                                            std::byte* in_bytes, std::byte* out_bytes) {
  T* const in = reinterpret_cast<T*>(in_bytes);
  T* const out = reinterpret_cast<T*>(out_bytes);
  if (which == op::barrier) return std::make_unique<barrier_call<Group, T>>(group, which, in, out, what.root);
  if (!reduces(which)) return std::make_unique<mover<Group, T>>(group, which, in, out, what.root);
  if constexpr (belay::reducible<T>) {
    const auto reducing = [&]<class Op>(Op) -> std::unique_ptr<library_call> {
      if (which == op::all_reduce) return std::make_unique<all_reducer<Group, T, Op>>(group, which, in, out, what.root);
      return std::make_unique<reducer<Group, T, Op>>(group, which, in, out, what.root);
    };
    if (what.redop == "prod") return reducing(belay::product);
    if (what.redop == "min") return reducing(belay::minimum);
    if (what.redop == "max") return reducing(belay::maximum);
    if (what.redop == "avg") return reducing(belay::average);
    return reducing(belay::sum);
  } else {
    return nullptr;
  }
}

}  // namespace bench
