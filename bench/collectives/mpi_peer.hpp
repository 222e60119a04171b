// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// MPI's own collectives in the same processes as ours, on private buffers in huge pages, which suit MPI best.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "collectives/operation.hpp"
#include "collectives/options.hpp"
#include "collectives/pattern.hpp"
#include "collectives/probe.hpp"
#include "support/mpirun.hpp"

#if defined(BELAY_BENCH_MPI)
#include <mpi.h>
#endif

namespace bench {

#if defined(BELAY_BENCH_MPI)
class mpi_peer {
 public:
  mpi_peer(const options& what, std::size_t bytes, int rank)
      : in_(bytes),
        out_(bytes),
        rank_(rank),
        ranks_(what.ranks),
        root_(what.root),
        type_(type_of(what.type)),
        redop_(op_of(what.redop)),
        element_bytes_(element_bytes(what.type)),
        can_reduce_(redop_ != MPI_OP_NULL && what.type != "bf16" && what.type != "fp16" && what.type != "fp8") {}

  [[nodiscard]] bool can(op what) const { return can_reduce_ || !reduces(what); }

  void prepare(op what, extent size) {
    what_ = what;
    size_ = size;
    counts_.assign(static_cast<std::size_t>(ranks_), static_cast<int>(size.count));
    offsets_.clear();
    for (int q = 0; q < ranks_; ++q) offsets_.push_back(q * static_cast<int>(size.count));
  }

  void freshen(bool in_place) {
    const bool part = what_ == op::all_gather || what_ == op::all_gather_v || what_ == op::gather;
    const std::size_t bytes = size_.count * element_bytes_;
    std::byte* const to = in_place ? out() + (part ? bytes * static_cast<std::size_t>(rank_) : 0) : in();
    // Bytes of 1 to 127 make numbers of every other type that are not slow to add.
    if (type_ == MPI_FLOAT)
      floats_.write(reinterpret_cast<float*>(to), part ? size_.count : size_.elements(), rank_, ++round_);
    else
      bytes_.write(reinterpret_cast<std::uint8_t*>(to), part ? bytes : bytes * size_.parts, rank_, ++round_);
  }

  void call(bool in_place) {
    MPI_Comm const world = MPI_COMM_WORLD;
    const int n = static_cast<int>(size_.count);
    const bool root = rank_ == root_;
    const void* const from = in_place ? MPI_IN_PLACE : static_cast<const void*>(in());
    switch (what_) {
      case op::barrier: MPI_Barrier(world); break;
      case op::all_reduce: MPI_Allreduce(from, out(), n, type_, redop_, world); break;
      case op::reduce_scatter: MPI_Reduce_scatter_block(from, out(), n, type_, redop_, world); break;
      case op::reduce_scatter_v: MPI_Reduce_scatter(from, out(), counts_.data(), type_, redop_, world); break;
      case op::all_gather: MPI_Allgather(from, n, type_, out(), n, type_, world); break;
      case op::all_gather_v:
        MPI_Allgatherv(from, n, type_, out(), counts_.data(), offsets_.data(), type_, world);
        break;
      case op::all_to_all: MPI_Alltoall(from, n, type_, out(), n, type_, world); break;
      case op::all_to_all_v:
        MPI_Alltoallv(from, counts_.data(), offsets_.data(), type_, out(), counts_.data(), offsets_.data(), type_,
                      world);
        break;
      case op::broadcast: MPI_Bcast(in_place ? out() : in(), n, type_, root_, world); break;
      case op::reduce:
        MPI_Reduce(in_place && root ? MPI_IN_PLACE
                   : in_place       ? static_cast<const void*>(out())
                                    : in(),
                   out(), n, type_, redop_, root_, world);
        break;
      case op::gather:
        MPI_Gather(in_place && root ? MPI_IN_PLACE : static_cast<const void*>(in()), n, type_, out(), n, type_, root_,
                   world);
        break;
      case op::scatter:
        MPI_Scatter(in_place ? out() : in(), n, type_, in_place && root ? MPI_IN_PLACE : static_cast<void*>(out()), n,
                    type_, root_, world);
        break;
      case op::send_recv:
        MPI_Sendrecv(in(), n, type_, (rank_ + 1) % ranks_, 0, out(), n, type_, (rank_ + ranks_ - 1) % ranks_, 0, world,
                     MPI_STATUS_IGNORE);
        break;
    }
  }

 private:
  [[nodiscard]] std::byte* in() const { return in_.data(); }
  [[nodiscard]] std::byte* out() const { return out_.data(); }

  [[nodiscard]] static MPI_Datatype type_of(const std::string& type) {
    if (type == "float") return MPI_FLOAT;
    if (type == "double") return MPI_DOUBLE;
    if (type == "int8") return MPI_INT8_T;
    if (type == "int32") return MPI_INT32_T;
    if (type == "int64") return MPI_INT64_T;
    return element_bytes(type) == 2 ? MPI_UINT16_T : MPI_UINT8_T;
  }
  [[nodiscard]] static MPI_Op op_of(const std::string& redop) {
    if (redop == "sum") return MPI_SUM;
    if (redop == "prod") return MPI_PROD;
    if (redop == "min") return MPI_MIN;
    if (redop == "max") return MPI_MAX;
    return MPI_OP_NULL;  // an average
  }

  private_pages in_, out_;
  int rank_, ranks_, root_;
  MPI_Datatype type_;
  MPI_Op redop_;
  std::size_t element_bytes_;
  bool can_reduce_;
  op what_ = op::barrier;
  extent size_;
  unsigned round_ = 0;
  std::vector<int> counts_, offsets_;
  pattern<float> floats_;
  pattern<std::uint8_t> bytes_;
};

[[nodiscard]] inline std::unique_ptr<mpi_peer> make_mpi_peer(const options& what, std::size_t bytes, int rank) {
  return std::make_unique<mpi_peer>(what, bytes, rank);
}
#else
class mpi_peer {
 public:
  [[nodiscard]] bool can(op) const { return false; }
  void prepare(op, extent) {}
  void freshen(bool) {}
  void call(bool) {}
};

[[nodiscard]] inline std::unique_ptr<mpi_peer> make_mpi_peer(const options&, std::size_t, int) { return nullptr; }
#endif

}  // namespace bench
