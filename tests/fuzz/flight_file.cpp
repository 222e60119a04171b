// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Any bytes as a flight file: refused with the byte, or shown in all the ways of belay-fr.
#include "fuzz/support/target.hpp"
#include "tools/belay_fr/flight.hpp"
#include "tools/belay_fr/flight_json.hpp"
#include "tools/belay_fr/picture.hpp"

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  fuzz::refuses_with<belay::file_error>([&] {
    const belay_fr::flight read = belay_fr::read_flight("flight.json", std::string(fuzz::text_of(data, size)));
    constexpr std::size_t count = 10;
    const int last = static_cast<int>(read.ranks.size()) - 1;
    std::string shown = belay_fr::head_text(read) + belay_fr::ranks_table(read) +
                        belay_fr::side_by_side(read, count).text() +
                        belay_fr::rank_table(read, static_cast<std::size_t>(last), count);
    for (const std::string& json : {belay_fr::json_text(read, count, -1), belay_fr::json_text(read, count, last)}) {
      fuzz::expect(nlohmann::json::accept(json), "what is printed for programs is JSON");
      shown += json;
    }
    fuzz::expect(belay::printable_lines(shown) == shown, "what is printed can be shown");
  });
  return 0;
}
