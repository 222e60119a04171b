// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Small messages that are sent without waiting and taken in the order of their arrival.
// IWYU pragma: private, include "belay/backend/mpi.hpp"
#pragma once

#include <mpi.h>

#include <cstddef>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "belay/backend/mpi/progress/mpi_runtime.hpp"
#include "belay/core/config.hpp"

namespace belay::inline BELAY_ABI {
namespace mpi {

/// Messages with one tag of one communicator.
class message_queue {
 public:
  message_queue(MPI_Comm comm, int tag) noexcept : comm_(comm), tag_(tag) {}
  message_queue(const message_queue&) = delete;
  message_queue& operator=(const message_queue&) = delete;
  // After a failure the library may still read what is not complete: that memory is never freed.
  ~message_queue() {
    for (sent& one : sent_) static_cast<void>(one.bytes.release());
  }

  [[nodiscard]] MPI_Comm comm() const noexcept { return comm_; }

  /// Sends without waiting.
  void send(int to, std::vector<std::byte> bytes) {
    sent_.push_back({MPI_REQUEST_NULL, std::make_unique<std::vector<std::byte>>(std::move(bytes))});
    sent& last = sent_.back();
    const int size = static_cast<int>(last.bytes->size());
    const int code = MPI_Isend(last.bytes->data(), size, MPI_BYTE, to, tag_, comm_, &last.request);
    if (code == MPI_SUCCESS) return;
    sent_.pop_back();
    throw mpi_error("MPI_Isend", code, to);
  }

  /// Calls `deliver(from, bytes)` for each message that has arrived.
  template <class Deliver>
  void poll(Deliver deliver) {
    release_completed();
    while (true) {
      int there = 0;
      MPI_Message message;
      MPI_Status status;
      expect(MPI_Improbe(MPI_ANY_SOURCE, tag_, comm_, &there, &message, &status), "MPI_Improbe");
      if (there == 0) return;
      int size = 0;
      MPI_Get_count(&status, MPI_BYTE, &size);
      received_.resize(static_cast<std::size_t>(size));
      expect(MPI_Mrecv(received_.data(), size, MPI_BYTE, &message, &status), "MPI_Mrecv", status.MPI_SOURCE);
      deliver(status.MPI_SOURCE, std::span<const std::byte>(received_));
    }
  }

  /// Whether the library is done with everything sent.
  [[nodiscard]] bool drained() {
    release_completed();
    return sent_.empty();
  }

 private:
  struct sent {
    MPI_Request request;
    std::unique_ptr<std::vector<std::byte>> bytes;
  };

  void release_completed() {
    for (std::size_t i = 0; i < sent_.size();) {
      int complete = 0;
      expect(MPI_Test(&sent_[i].request, &complete, MPI_STATUS_IGNORE), "MPI_Test");
      if (complete == 0) {
        ++i;
        continue;
      }
      std::swap(sent_[i], sent_.back());
      sent_.pop_back();
    }
  }

  MPI_Comm comm_;
  int tag_;
  std::vector<sent> sent_;
  std::vector<std::byte> received_;
};

}  // namespace mpi
}  // namespace belay::inline BELAY_ABI
