// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <belay/report_page.hpp>

int main() {
  belay::report_folder folder("page", belay::report_start::afresh);
  belay::report_page page(folder, {.title = "consumer", .steps = 1});
  page.add({.step = 1, .loss = 0.5});
  page.finish();
  return page.take_problem() ? 1 : 0;
}
