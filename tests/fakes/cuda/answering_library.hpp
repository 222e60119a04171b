// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// A library of products with the answers that a test gives. By whichever of them a product is made, it is the same.
#pragma once

#include <algorithm>
#include <cstddef>
#include <functional>
#include <map>
#include <mutex>
#include <span>
#include <vector>

#include "belay/backend/cuda.hpp"

namespace fakes {

/// `product(stream, call)` of the Device queues a product.
template <class Device, class Stream, class Status>
class answering_library {
 public:
  struct algorithm_type {
    int number = 0;
  };
  using answer = belay::cuda::library_answer<algorithm_type>;

  /// The answers to a problem, on whichever thread asks.
  std::function<std::vector<answer>(const belay::cuda::product_problem&)> answers_of =
      [](const belay::cuda::product_problem&) { return std::vector<answer>(1); };

  Status algorithms(Stream, const belay::cuda::product_problem& problem, std::span<answer> answers,
                    std::size_t& count) {
    const std::lock_guard lock(mutex_);
    const std::vector<answer> all = answers_of(problem);
    count = std::min(all.size(), answers.size());
    std::copy_n(all.begin(), count, answers.begin());
    ++questions_;
    return {};
  }
  [[nodiscard]] std::size_t product_room(Stream on) {
    const std::lock_guard lock(mutex_);
    return rooms_[on];
  }
  template <class C, class A>
  requires(sizeof(A) == 2) Status
      product(Stream on, const belay::product_call<C, A, A>& call, const algorithm_type& by) {
    {
      const std::lock_guard lock(mutex_);
      products_by_.push_back(by.number);
    }
    return static_cast<Device&>(*this).product(on, call);
  }

  /// How often it was asked, and the numbers of the algorithms by which it has multiplied.
  [[nodiscard]] std::size_t questions() const noexcept { return questions_; }
  [[nodiscard]] const std::vector<int>& products_by() const noexcept { return products_by_; }

 protected:
  void note_room(Stream on, std::size_t bytes) {
    const std::lock_guard lock(mutex_);
    rooms_[on] = bytes;
  }

 private:
  std::mutex mutex_;
  std::map<Stream, std::size_t> rooms_;
  std::size_t questions_ = 0;
  std::vector<int> products_by_;
};

}  // namespace fakes
