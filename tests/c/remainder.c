/* Remainders without a division against those with one: for every divisor that rings may have and some
 * others, at and around multiples of the divisor, up to the largest number permitted. */
#include "check.h"

#include "base/remainder.h"

static void check_number(uint64_t number, uint32_t divisor, uint64_t inverse) {
    uint32_t rest = epw_remainder(number, divisor, inverse);
    CHECK_MSG(rest == number % divisor, "%llu %% %u is %llu, not %u", (unsigned long long)number, divisor,
              (unsigned long long)(number % divisor), rest);
}

static void check_divisor(uint32_t divisor, uint64_t *random) {
    uint64_t inverse = epw_inverse(divisor), most = UINT64_MAX / divisor;
    check_number(0, divisor, inverse);
    check_number(most, divisor, inverse);
    check_number(most / divisor * divisor, divisor, inverse);
    check_number(most / divisor * divisor - 1, divisor, inverse);
    for (int i = 0; i < 16; i++) {
        *random = *random * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        uint64_t number = (*random >> (i * 4)) % most / divisor * divisor;
        check_number(number, divisor, inverse);
        check_number(number + divisor - 1, divisor, inverse);
        check_number(number > 0 ? number - 1 : 0, divisor, inverse);
    }
}

int main(void) {
    uint64_t random = 1;
    for (uint32_t divisor = 1; divisor <= 70000; divisor++) check_divisor(divisor, &random);
    for (uint32_t divisor = 70001; divisor < 0xfff00000u; divisor += 1 + divisor / 1000)
        check_divisor(divisor, &random);
    check_divisor(UINT32_MAX, &random);
    return check_result("remainder");
}
