// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// A policy of which a call of rank 1 fails: a world copies it for each rank in turn.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "fakes/nccl/fake_nccl.hpp"

namespace fakes {

struct one_failure {
  nccl_injection what = {};
  int copies = 0;
  std::vector<std::string> names = {};  // of all calls of rank 1
};
class failing_nccl : public nccl_api {
 public:
  failing_nccl(nccl_fabric& fabric, one_failure& how) : nccl_api(fabric), how_(&how) {}
  failing_nccl(const failing_nccl& other)
      : nccl_api(other.fabric(), other.how_->copies == 1 ? other.how_->what : nccl_injection{}),
        how_(other.how_),
        rank_(how_->copies++) {}
  ~failing_nccl() {
    if (rank_ == 1) how_->names = names();
  }

 private:
  one_failure* how_;
  int rank_ = -1;
};

/// Whether peers wait for a call; for a transfer they wait in its group.
inline bool has_peers(const std::string& name) {
  for (const char* other : {"version", "make_id", "group_start", "destroy", "send", "receive"})
    if (name == other) return false;
  return true;
}

}  // namespace fakes
