// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// What ranks that share a fake device post for each other: where they take turns, who looks next is drawn too.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>

namespace fakes {

template <class Api>
struct turned_meeting {
  // Whoever finds it taken waits for a turn.
  struct turned_mutex {
    Api* api;
    std::mutex taken = {};
    void lock() {
      if (!api->takes_turns()) return taken.lock();
      while (!taken.try_lock()) wait_for_others(*api);
    }
    void unlock() { taken.unlock(); }
  };
  struct turned_news {
    Api* api;
    std::condition_variable_any changed = {};
    void notify_all() { changed.notify_all(); }
    void wait_for(std::unique_lock<turned_mutex>& lock, std::chrono::milliseconds at_most) {
      if (!api->takes_turns()) return static_cast<void>(changed.wait_for(lock, at_most));
      lock.unlock();
      wait_for_others(*api);
      lock.lock();
    }
  };

  explicit turned_meeting(Api& api) : mutex{&api}, news{&api} {}

  turned_mutex mutex;
  turned_news news;

 private:
  static void wait_for_others(Api& api) {
    static_cast<void>(api.let_others());
    api.await_turn("meets");
  }
};

}  // namespace fakes
