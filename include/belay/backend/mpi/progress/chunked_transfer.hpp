// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The bytes of an operation. They go through bounce buffers, chunk by chunk: when an operation fails, its rank gets its
// memory back at once although the MPI library may still read what was sent, and what arrives late is not written to
// it. A chunk of a peer is delivered only after the same range to that peer has been copied out, so parts may change
// places in one buffer.
// IWYU pragma: private, include "belay/backend/mpi.hpp"
#pragma once

#include <mpi.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "belay/backend/mpi/progress/mpi_runtime.hpp"
#include "belay/core/bounds.hpp"
#include "belay/core/config.hpp"

namespace belay::inline BELAY_ABI {
namespace mpi {

/// Bytes that go to a rank of the world, and bytes that come from it.
struct transfer {
  int peer = 0;
  const std::byte* out = nullptr;
  std::size_t out_bytes = 0;
  std::byte* in = nullptr;
  std::size_t in_bytes = 0;

  template <class T>
  void send(const T* from, std::size_t count) noexcept {
    out = reinterpret_cast<const std::byte*>(from);
    out_bytes = count * sizeof(T);
  }
  template <class T>
  void receive(T* to, std::size_t count) noexcept {
    in = reinterpret_cast<std::byte*>(to);
    in_bytes = count * sizeof(T);
  }
};

/// All transfers of one operation over one communicator.
class chunked_transfer {
 public:
  explicit chunked_transfer(MPI_Comm comm) noexcept : comm_(comm) {}
  chunked_transfer(const chunked_transfer&) = delete;
  chunked_transfer& operator=(const chunked_transfer&) = delete;
  // The library may still use the bounce buffers of requests that are not complete: they are never freed.
  ~chunked_transfer() {
    for (active_transfer& one : transfers_) {
      if (one.in != MPI_REQUEST_NULL) {
        MPI_Cancel(&one.in);
        static_cast<void>(one.in_stage.release());
      }
      if (one.out != MPI_REQUEST_NULL) static_cast<void>(one.out_stage.release());
    }
  }

  void add(const transfer& what) {
    if (what.out_bytes > 0 || what.in_bytes > 0) transfers_.emplace_back().what = what;
  }

  /// Moves what can be moved; true when all is over. What is added later makes it false again.
  bool progress() {
    bool over = true;
    for (active_transfer& one : transfers_) {
      send(one);
      receive(one);
      over = over && one.over();
    }
    return over;
  }

  /// Calls `tell(peer, false)` for each transfer that is not over.
  template <class Report>
  void remaining(Report tell) const {
    for (const active_transfer& one : transfers_) {
      if (!one.over()) tell(one.what.peer, false);
    }
  }

 private:
  static constexpr int data_tag = 3;
  static constexpr std::size_t chunk = 256 * 1024;

  struct active_transfer {
    transfer what;
    std::size_t staged = 0, sent = 0, received = 0;
    MPI_Request out = MPI_REQUEST_NULL, in = MPI_REQUEST_NULL;
    std::unique_ptr<std::byte[]> out_stage, in_stage;
    bool arrived = false;

    [[nodiscard]] bool over() const noexcept { return sent == what.out_bytes && received == what.in_bytes; }
  };

  static std::byte* stage(std::unique_ptr<std::byte[]>& at, std::size_t bytes) {
    if (at == nullptr) at.reset(new std::byte[lesser_of(chunk, bytes)]);
    return at.get();
  }

  void send(active_transfer& one) const {
    if (one.out != MPI_REQUEST_NULL) {
      int complete = 0;
      expect(MPI_Test(&one.out, &complete, MPI_STATUS_IGNORE), "MPI_Test of a send", one.what.peer);
      if (complete == 0) return;
      one.sent = one.staged;
    }
    if (one.staged == one.what.out_bytes) return;
    const std::size_t length = lesser_of(chunk, one.what.out_bytes - one.staged);
    std::byte* const bytes = stage(one.out_stage, one.what.out_bytes);
    std::memcpy(bytes, one.what.out + one.staged, length);
    const int size = static_cast<int>(length);
    expect(MPI_Isend(bytes, size, MPI_BYTE, one.what.peer, data_tag, comm_, &one.out), "MPI_Isend", one.what.peer);
    one.staged += length;
  }

  void receive(active_transfer& one) const {
    while (one.received < one.what.in_bytes) {
      const std::size_t length = lesser_of(chunk, one.what.in_bytes - one.received);
      if (one.in == MPI_REQUEST_NULL && !one.arrived) {
        std::byte* const bytes = stage(one.in_stage, one.what.in_bytes);
        const int size = static_cast<int>(length);
        expect(MPI_Irecv(bytes, size, MPI_BYTE, one.what.peer, data_tag, comm_, &one.in), "MPI_Irecv", one.what.peer);
      }
      if (!one.arrived) {
        int complete = 0;
        expect(MPI_Test(&one.in, &complete, MPI_STATUS_IGNORE), "MPI_Test of a receive", one.what.peer);
        if (complete == 0) return;
        one.arrived = true;
      }
      if (one.staged < lesser_of(one.what.out_bytes, one.received + length)) return;
      std::memcpy(one.what.in + one.received, one.in_stage.get(), length);
      one.received += length;
      one.arrived = false;
    }
  }

  MPI_Comm comm_;
  std::vector<active_transfer> transfers_;
};

}  // namespace mpi
}  // namespace belay::inline BELAY_ABI
