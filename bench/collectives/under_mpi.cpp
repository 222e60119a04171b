// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "collectives/under_mpi.hpp"

#include <mpi.h>

#include <cstddef>
#include <cstring>
#include <stdexcept>

#include "belay/backend/mpi.hpp"
#include "collectives/buffers.hpp"

namespace bench {

// Messages need no shared memory; the scoreboard and the hand-written baseline do, and MPI has some for the processes
// of one machine.
template <>
class buffers<belay::mpi::group> {
 public:
  buffers(const belay::mpi::group& group, std::size_t buffer_bytes)
      : each_(2 * (buffer_bytes + gap)), here_(group.rank()), buffer_(buffer_bytes + gap) {
    MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &machine_);
    int here = 0;
    MPI_Comm_size(machine_, &here);
    if (here != group.size()) throw std::runtime_error("--as mpi: all ranks that are measured run on one machine");
    const std::size_t total = gap + each_ * static_cast<std::size_t>(here);
    void* mine = nullptr;
    MPI_Win_allocate_shared(here_ == 0 ? static_cast<MPI_Aint>(total) : 0, 1, MPI_INFO_NULL, machine_, &mine, &window_);
    MPI_Aint bytes = 0;
    int unit = 0;
    MPI_Win_shared_query(window_, 0, &bytes, &unit, &first_);
    if (here_ == 0) std::memset(first_, 0, gap);
    MPI_Barrier(machine_);
  }
  buffers(const buffers&) = delete;
  buffers& operator=(const buffers&) = delete;
  ~buffers() {
    MPI_Win_free(&window_);
    MPI_Comm_free(&machine_);
  }

  [[nodiscard]] std::byte* scoreboard_lines() const { return bytes(); }
  [[nodiscard]] std::byte* baseline_lines() const { return bytes() + gap / 2; }
  [[nodiscard]] std::byte* in(int rank) const { return bytes() + gap + each_ * static_cast<std::size_t>(rank); }
  [[nodiscard]] std::byte* out(int rank) const { return in(rank) + buffer_; }

 private:
  static constexpr std::size_t gap = 64 * 1024;
  [[nodiscard]] std::byte* bytes() const { return static_cast<std::byte*>(first_); }

  std::size_t each_;
  int here_;
  std::size_t buffer_;
  void* first_ = nullptr;
  MPI_Comm machine_ = MPI_COMM_NULL;
  MPI_Win window_ = MPI_WIN_NULL;
};

}  // namespace bench

#include "collectives/body.hpp"

std::size_t bench::measure_under_mpi(const options& what) {
  belay::mpi::world world;
  return world.run([&](belay::mpi::rank& self) { return measure_all(self.world(), what); });
}
