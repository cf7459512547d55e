/* SMs that kernels of two lanes take: whatever the order in which kernels begin and end, all running ones
 * have SMs of their own; a lane that is alone has nearly all, and two that run together get half each. */
#include "check.h"

#include "prefill/lane_sms.h"

#include <stdbool.h>

static uint32_t held(uint32_t word) {
    return epw_sms_held(word, 0) + epw_sms_held(word, 1);
}

static uint32_t take(uint32_t *word, uint32_t lane, uint32_t wanted, uint32_t all) {
    epw_sms_taken taken = epw_sms_take(*word, lane, wanted, all);
    *word = taken.word;
    CHECK(taken.sms > 0 && taken.sms <= wanted);
    CHECK(epw_sms_held(*word, lane) == taken.sms);
    CHECK_MSG(held(*word) <= all, "%u of %u SMs are taken", held(*word), all);
    return taken.sms;
}

static void give(uint32_t *word, uint32_t lane) {
    *word &= epw_sms_others(lane);
    CHECK(epw_sms_held(*word, lane) == 0);
}

static void a_lane_that_is_alone_has_nearly_all(uint32_t all) {
    uint32_t word = 0;
    for (uint32_t i = 0; i < 40; i++) { /* also if the lanes take turns */
        CHECK(take(&word, i % 2, all, all) == all - epw_sms_kept(all));
        give(&word, i % 2);
    }
    CHECK(take(&word, 0, 1, all) == 1);
}

static void lanes_that_meet_get_half_each(uint32_t all) {
    uint32_t word = 0, half = all / 2;
    CHECK(take(&word, 0, all, all) == all - epw_sms_kept(all));
    CHECK(take(&word, 1, all, all) == epw_sms_kept(all)); /* it need not wait */
    for (uint32_t i = 0; i < 10; i++) {
        give(&word, i % 2);
        uint32_t left = all - held(word);
        CHECK(take(&word, i % 2, all, all) == (left < half ? left : half));
    }
    give(&word, 0);
    give(&word, 1);
    for (uint32_t i = 0; i < EPW_SMS_WARY; i++) {
        CHECK(take(&word, 0, all, all) == half);
        give(&word, 0);
    }
    CHECK(take(&word, 0, all, all) == all - epw_sms_kept(all));
}

static void all_running_kernels_have_sms(uint32_t all, uint64_t seed) {
    uint32_t word = 0;
    bool runs[2] = {false, false};
    for (uint32_t i = 0; i < 200; i++) {
        seed = seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        uint32_t lane = seed >> 63, wanted = 1 + (uint32_t)(seed >> 33) % all;
        if (runs[lane]) {
            give(&word, lane);
        } else {
            take(&word, lane, wanted, all);
        }
        runs[lane] = !runs[lane];
        CHECK((epw_sms_held(word, 0) > 0) == runs[0] && (epw_sms_held(word, 1) > 0) == runs[1]);
    }
}

int main(void) {
    static const uint32_t sms[] = {2, 3, 4, 16, 24, 33, 64, 108, 132, 148, 1000};
    for (uint32_t i = 0; i < sizeof sms / sizeof sms[0]; i++) {
        uint32_t all = sms[i];
        CHECK(epw_sms_kept(all) >= 1 && epw_sms_kept(all) <= all / 2);
        a_lane_that_is_alone_has_nearly_all(all);
        lanes_that_meet_get_half_each(all);
        for (uint64_t seed = 1; seed <= 50; seed++) all_running_kernels_have_sms(all, seed);
    }
    CHECK(epw_sms_kept(24) == 1 && epw_sms_kept(132) == 17); /* as the header says */
    return check_result("lane_sms");
}
