// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The operations of a group of one rank: copies on its communication stream. NCCL takes no part.
// IWYU pragma: private, include "belay/backend/nccl.hpp"
#pragma once

#include <cstddef>
#include <span>

#include "belay/backend/cuda/stream.hpp"
#include "belay/comm/communicator.hpp"
#include "belay/core/config.hpp"
#include "belay/core/error.hpp"
#include "belay/core/where.hpp"

namespace belay::inline BELAY_ABI::nccl {

/// As `operations`. Throws usage_error for an exchange that does not fit.
template <cuda::device_api Api>
class lone_operations {
 public:
  lone_operations(cuda::stream<Api>& on, int number, where at) noexcept : on_(&on), number_(number), at_(at) {}

  template <class T, class Op>
  void all_reduce(std::span<const T> in, std::span<T> out, Op) const {
    copy(std::as_bytes(in), std::as_writable_bytes(out));
  }
  template <class T, class Op>
  void reduce_scatter(std::span<const T> in, std::span<T> out, Op op) const {
    all_reduce<T>(in, out, op);
  }
  template <class T, class Op>
  void reduce(std::span<const T> in, std::span<T> out, Op op, int) const {
    all_reduce<T>(in, out, op);
  }
  template <class T, class Op>
  void ordered_all_reduce(std::span<const T> in, std::span<T> out, Op op) const {
    all_reduce<T>(in, out, op);
  }
  template <class T, class Op>
  void ordered_reduce_scatter(std::span<const T> in, std::span<T> out, Op op) const {
    all_reduce<T>(in, out, op);
  }
  template <class T, class Op>
  void ordered_reduce(std::span<const T> in, std::span<T> out, Op op, int) const {
    all_reduce<T>(in, out, op);
  }
  template <class T, class Op>
  void reduce_scatter_v(std::span<T>, std::span<const std::size_t>, Op) const noexcept {}
  template <class T, class Op>
  void ordered_reduce_scatter_v(std::span<T>, std::span<const std::size_t>, Op) const noexcept {}
  void all_gather_v(std::span<std::byte>, std::span<const std::size_t>, std::size_t) const noexcept {}
  void all_to_all_v(std::span<const std::byte> in, std::span<const std::size_t>, std::span<std::byte> out,
                    std::span<const std::size_t>, std::size_t) const {
    copy(in, out);
  }
  void all_gather(std::span<const std::byte> in, std::span<std::byte> out) const { copy(in, out); }
  void all_to_all(std::span<const std::byte> in, std::span<std::byte> out) const { copy(in, out); }
  void broadcast(std::span<std::byte>, int) const noexcept {}
  void gather(std::span<const std::byte> in, std::span<std::byte> out, int) const { copy(in, out); }
  void scatter(std::span<const std::byte> in, std::span<std::byte> out, int) const { copy(in, out); }
  void barrier() const noexcept {}
  /// The n-th send of the rank to itself meets its n-th receive.
  void exchange(std::span<const p2p> transfers) const {
    const auto next = [&](std::size_t from, p2p::direction kind) {
      while (from < transfers.size() && transfers[from].kind != kind) ++from;
      return from;
    };
    std::size_t out = next(0, p2p::direction::send), in = next(0, p2p::direction::receive);
    for (; out < transfers.size() && in < transfers.size();
         out = next(out + 1, p2p::direction::send), in = next(in + 1, p2p::direction::receive)) {
      if (transfers[out].bytes != transfers[in].bytes) break;
      if (transfers[out].bytes > 0) on_->copy(transfers[in].data, transfers[out].data, transfers[out].bytes, at_);
    }
    if (out != in)
      throw usage_error(
          "exchange: what rank " + std::to_string(number_) + " sends itself is not what it expects of itself", at_);
  }

 private:
  void copy(std::span<const std::byte> in, std::span<std::byte> out) const {
    if (in.data() != out.data() && !in.empty()) on_->copy(out.data(), in.data(), in.size(), at_);
  }

  cuda::stream<Api>* on_;
  int number_;
  where at_;
};

}  // namespace belay::inline BELAY_ABI::nccl
